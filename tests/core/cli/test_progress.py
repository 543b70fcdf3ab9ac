from __future__ import annotations

import io
import logging
import threading

import pytest

from twostroke.backends.hookspecs import Progress
from twostroke.cli import progress as module
from twostroke.cli.progress import ProgressDisplay, clock, size

STEPS = [
    Progress("loading", 0.0),
    Progress("loading", 0.1),
    Progress("tracing prefill", 0.2),
    Progress("tracing prefill", 0.5),
    Progress("writing", 1.0),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock_s(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


def show(out, steps=STEPS) -> str:
    with ProgressDisplay(out) as display:
        for step in steps:
            display(step)
    return out.getvalue()


def test_elsewhere_than_on_a_terminal_each_stage_is_a_line(clock_s):
    assert show(io.StringIO()) == (
        "  0%  0:01  loading\n 20%  0:03  0:12 left  tracing prefill\n100%  0:05  writing\n"
    )


def test_on_a_terminal_it_is_one_line_that_changes(clock_s):
    text = show(Terminal())
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.strip("\n").split("\r\x1b[K")[1:] == [
        "  0%  0:01  loading",
        " 10%  0:02  0:18 left  loading",
        " 20%  0:03  0:12 left  tracing prefill",
        " 50%  0:04  0:04 left  tracing prefill",
        "100%  0:05  writing",
    ]


def test_what_is_left_never_grows_and_percents_never_fall(clock_s):
    steps = [Progress("a", 0.5), Progress("b", 0.5), Progress("c", 0.4), Progress("d", 0.9)]
    lines = show(io.StringIO(), steps).splitlines()
    assert lines == [
        " 50%  0:01  0:01 left  a",
        " 50%  0:02  0:00 left  b",
        " 50%  0:03  0:00 left  c",
        " 90%  0:04  0:00 left  d",
    ]


def test_another_job_begins_anew(clock_s):
    steps = [Progress("load one", 0.0), Progress("done", 1.0), Progress("load two", 0.0)]
    assert show(io.StringIO(), [*steps, Progress("trace", 0.5)]).splitlines()[2:] == [
        "  0%  0:00  load two",
        " 50%  0:01  0:01 left  trace",
    ]


def test_a_terminal_is_not_flooded(monkeypatch):
    class Stopped:
        def monotonic(self) -> float:
            return 1.0

    monkeypatch.setattr(module, "time", Stopped())
    many = [Progress("loading", step / 1000) for step in range(1000)]
    assert show(Terminal(), many).count("loading") == 1


def test_the_clock_goes_on_while_a_stage_says_nothing(monkeypatch):
    monkeypatch.setattr(module, "_TICK_S", 0.001)
    ticks = threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if self.getvalue().count("loading") == 3:
                ticks.set()
            return super().write(text)

    out = Watched()
    with ProgressDisplay(out) as display:
        display(Progress("loading", 0.0))
        assert ticks.wait(60)
    lines = out.getvalue().split("\x1b[K")[1:]
    assert len(lines) >= 3
    assert all(line.strip() == "0%  0:00  loading" for line in lines)


def test_a_log_record_gets_a_line_of_its_own():
    out = Terminal()
    handler = logging.StreamHandler(out)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with ProgressDisplay(out) as display:
            display(Progress("loading", 0.0))
            logging.getLogger("twostroke.server").warning("somebody asked")
            display(Progress("tracing", 0.5))
        logging.getLogger("twostroke.server").warning("ready")
    finally:
        root.removeHandler(handler)
    screen = [line.rpartition("\x1b[K")[2] for line in out.getvalue().split("\n")]
    assert screen == ["somebody asked", " 50%  0:00  0:00 left  tracing", "ready", ""]
    assert not handler.filters


@pytest.mark.parametrize("fraction", [-1.0, 1.7])
def test_fractions_stay_within_bounds(fraction):
    text = show(io.StringIO(), [Progress("x", fraction)])
    assert text.split()[0] in ("0%", "100%")


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, "0:00"), (65, "1:05"), (3600, "60:00")])
def test_clock(seconds, expected):
    assert clock(seconds) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1 kB"),
        (1_536, "1.54 kB"),
        (146_200_000, "146 MB"),
        (999_600_000, "1 GB"),
        (12_340_000_000, "12.3 GB"),
    ],
)
def test_size(num_bytes, expected):
    assert size(num_bytes) == expected
