"""A request whose time is up ends with an error, wherever it stands, and nobody else notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.engine import EngineLimits
from twostroke.engine.deadlines import earliest_deadline
from twostroke.errors import DeadlineError
from twostroke.testing.engines import echo_request
from twostroke.types import FailedEvent, SamplingParams

LIMITS = EngineLimits(max_rows=1, prefill_chunk_tokens=4, kv_budget_bytes=2**20)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def engine_with(make_engine, clock: FakeClock, limits: EngineLimits = LIMITS):
    engine = make_engine(started=False, limits=limits).engine
    engine._clock = engine._intake._clock = engine._stepper._clock = clock
    return engine


def submit(engine, name: str, text: str, sink, deadline_at: float | None = None) -> None:
    request = replace(echo_request(name, text, ENDLESS), deadline_at=deadline_at)
    engine.submit(request, sink, arrived_at=100.0)


def error_of(sink) -> DeadlineError:
    (end,) = sink.ends
    assert sink.events[-1] is end
    assert isinstance(end, FailedEvent)
    assert isinstance(end.error, DeadlineError)
    return end.error


def test_in_the_queue(make_engine, recorder, clock):
    engine = engine_with(make_engine, clock)
    running, waiting = recorder(), recorder()
    submit(engine, "a", "abc", running)
    submit(engine, "b", "abc", waiting, deadline_at=101.0)
    engine.run_step()
    assert not waiting.events
    clock.now = 101.0
    engine.run_step()
    engine.check()
    assert "while the request waited" in str(error_of(waiting))
    assert len(running.token_ids) == 2
    assert engine.stats().num_waiting == 0


def test_in_the_middle_of_a_prompt(make_engine, recorder, clock):
    engine = engine_with(make_engine, clock)
    late, next_one = recorder(), recorder()
    submit(engine, "a", "a prompt of several chunks", late, deadline_at=101.0)
    submit(engine, "b", "xy", next_one)
    engine.run_step()
    clock.now = 102.0
    engine.run_step()
    engine.check()
    assert "while its prompt was being read" in str(error_of(late))
    assert len(next_one.token_ids) == 1, "the row was not given to the next in the same step"


def test_while_decoding(make_engine, recorder, clock):
    engine = engine_with(make_engine, clock)
    sink = recorder()
    submit(engine, "a", "abc", sink, deadline_at=101.0)
    engine.run_step()
    engine.run_step()
    clock.now = 101.5
    engine.run_step()
    engine.check()
    error = error_of(sink)
    assert "after 2 tokens of the answer" in str(error)
    assert (error.status, error.code) == (504, "deadline_exceeded")
    stats = engine.stats()
    assert (stats.num_running, stats.num_failed, stats.num_expired) == (0, 1, 1)


def test_an_abort_and_a_deadline_in_one_step_end_it_once(make_engine, recorder, clock):
    engine = engine_with(make_engine, clock)
    sink = recorder()
    submit(engine, "a", "abc", sink, deadline_at=101.0)
    engine.run_step()
    engine.abort("a")
    clock.now = 101.0
    engine.run_step()
    assert sink.reason == "aborted"


def test_the_engine_has_a_limit_of_its_own_that_nobody_can_put_off(make_engine, recorder, clock):
    limits = replace(LIMITS, request_timeout_s=2.0)
    engine = engine_with(make_engine, clock, limits)
    sink = recorder()
    submit(engine, "a", "abc", sink, deadline_at=1000.0)
    engine.run_step()
    assert not sink.ends
    clock.now = 102.0
    engine.run_step()
    assert "after 1 token of" in str(error_of(sink))


@pytest.mark.parametrize(
    ("deadline_at", "timeout_s", "expected"),
    [(None, None, None), (5.0, None, 5.0), (None, 3.0, 13.0), (12.0, 3.0, 12.0), (20.0, 3.0, 13.0)],
)
def test_the_earlier_one_counts(deadline_at, timeout_s, expected):
    assert earliest_deadline(deadline_at, 10.0, timeout_s) == expected
