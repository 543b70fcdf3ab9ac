"""SIGTERM in the middle of a command: its clean-up runs, and the exit code says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from twostroke.cli.termination import Terminated, terminable

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

SLOW_EXPORTER = """
import time
from twostroke.backends import ExporterSpec, hookimpl
from twostroke.bundle import sealing

def export(options, progress):
    with sealing(options.out) as folder:
        (folder / "half").write_text("half")
        print("half", flush=True)
        time.sleep(60)

@hookimpl
def twostroke_exporters():
    return [ExporterSpec("slow", 1, "", ("int8",), export)]
"""


@pytest.fixture
def exporting(tmp_path: Path, echo_environment: dict[str, str]):
    """A `twostroke export` that has written half of a bundle into `tmp_path/out`."""
    site = tmp_path / "site"
    info = site / "slow_exporter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-exporter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[twostroke]\nslow = slow_exporter\n")
    (site / "slow_exporter.py").write_text(SLOW_EXPORTER)
    paths = f"{site}{os.pathsep}{echo_environment['PYTHONPATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "export", "x", str(tmp_path / "out" / "bundle"),
         "--exporter", "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**echo_environment, "PYTHONPATH": paths},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout.readline() == "half\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_an_export_that_is_ended_leaves_nothing(exporting, tmp_path, number, code, told):
    assert len(os.listdir(tmp_path / "out")) == 1
    exporting.send_signal(number)
    _, err = exporting.communicate(timeout=120)
    assert exporting.returncode == code
    assert err.endswith(f"twostroke: {told}\n")
    assert "Traceback" not in err
    assert os.listdir(tmp_path / "out") == []


def test_signals_get_their_old_meaning_back():
    with pytest.raises(Terminated) as caught, terminable():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_elsewhere_than_in_the_main_thread_nothing_changes():
    seen = []

    def look() -> None:
        with terminable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
