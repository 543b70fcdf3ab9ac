"""How an engine ends: nothing hangs, nothing leaks, everybody is told."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from twostroke.engine import EngineLimits
from twostroke.errors import UnavailableError
from twostroke.testing.engines import echo_request
from twostroke.types import SamplingParams

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def test_draining_lets_running_and_waiting_sequences_end(make_engine, recorder):
    limits = EngineLimits(max_rows=1, kv_budget_bytes=2**20)
    echo = make_engine(limits=limits)
    sinks = [recorder() for _ in range(3)]
    for number, sink in enumerate(sinks):
        echo.engine.submit(echo_request(str(number), "hello"), sink, arrived_at=0.0)
    echo.engine.stop(drain_timeout_s=30)
    assert [sink.reason for sink in sinks] == ["stop"] * 3
    assert echo.prefill_backend.num_open_sessions == 0


def test_stopping_at_once_aborts_what_runs_and_what_waits(make_engine, recorder):
    limits = EngineLimits(max_rows=1, kv_budget_bytes=2**20)
    echo = make_engine(limits=limits, step_delay_s=0.001)
    sinks = [recorder(), recorder()]
    for number, sink in enumerate(sinks):
        request = echo_request(str(number), "hello", ENDLESS)
        echo.engine.submit(request, sink, arrived_at=0.0)
    echo.engine.stop()
    assert [sink.reason for sink in sinks] == ["aborted"] * 2


def test_a_drain_that_takes_too_long_aborts_the_rest(make_engine, recorder):
    echo = make_engine(step_delay_s=0.05)
    sink = recorder()
    echo.engine.submit(echo_request("a", "hello", ENDLESS), sink, arrived_at=0.0)
    echo.engine.stop(drain_timeout_s=0.1)
    assert sink.reason == "aborted"


def test_an_engine_that_never_started_tells_those_who_wait(make_engine, recorder):
    echo = make_engine(started=False)
    sink = recorder()
    echo.engine.submit(echo_request("a", "hello"), sink, arrived_at=0.0)
    echo.engine.stop()
    assert sink.reason == "aborted"
    assert echo.prefill_backend.num_open_sessions == 0


def test_stopping_twice_and_from_many_threads_is_harmless(make_engine):
    echo = make_engine()
    threads = [threading.Thread(target=echo.engine.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    echo.engine.stop()
    assert echo.prefill_backend.num_open_sessions == 0
    assert not echo.prefill_backend.is_closed, "backends belong to whoever opened them"


def test_a_stopped_engine_refuses_and_does_not_start_again(make_engine):
    echo = make_engine()
    echo.engine.stop()
    echo.engine.start()
    with pytest.raises(UnavailableError, match="stopping"):
        echo.answer("a", "hello", ENDLESS)


def test_a_listener_may_stop_the_engine(make_engine):
    echo = make_engine()
    ended = threading.Event()
    seen = []

    def sink(event: object) -> None:
        seen.append(event)
        echo.engine.stop(drain_timeout_s=30)
        if len(seen) == 2:
            ended.set()

    echo.engine.submit(echo_request("a", "hello", ENDLESS), sink, arrived_at=0.0)
    assert ended.wait(30)
    echo.engine.stop()
    assert seen[-1].reason.value == "aborted"


def test_a_program_that_forgets_to_stop_ends(echo_bundle):
    program = f"""
from pathlib import Path
from twostroke.testing.engines import EchoEngine, echo_request
from twostroke.types import SamplingParams
echo = EchoEngine(Path({str(echo_bundle)!r}), step_delay_s=0.001)
echo.engine.start()
request = echo_request("a", "hello", SamplingParams(temperature=0, ignore_eos=True))
echo.engine.submit(request, lambda event: None, arrived_at=0.0)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
