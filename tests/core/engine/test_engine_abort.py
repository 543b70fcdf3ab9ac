"""An abort frees the row within two steps, wherever the sequence stands."""

from __future__ import annotations

from twostroke.engine import EngineLimits
from twostroke.testing.engines import echo_request
from twostroke.types import SamplingParams

LIMITS = EngineLimits(max_rows=1, prefill_chunk_tokens=4, kv_budget_bytes=2**20)


def step(echo, times: int = 1) -> None:
    for _ in range(times):
        echo.engine.run_step()
        echo.engine.check()


def test_in_the_queue(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    running, waiting = recorder(), recorder()
    echo.engine.submit(echo_request("a", "abc"), running, arrived_at=0.0)
    echo.engine.submit(echo_request("b", "abc"), waiting, arrived_at=0.0)
    echo.engine.abort("b")
    step(echo)
    assert waiting.reason == "aborted"
    assert len(running.token_ids) == 1
    assert echo.engine.stats().num_waiting == 0


def test_in_the_middle_of_a_prefill(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    first, next_one = recorder(), recorder()
    echo.engine.submit(echo_request("a", "a prompt of several chunks"), first, arrived_at=0.0)
    echo.engine.submit(echo_request("b", "xy"), next_one, arrived_at=0.0)
    step(echo, 2)
    assert echo.engine.stats().kv_tokens_used == 8
    echo.engine.abort("a")
    step(echo)
    assert first.reason == "aborted"
    assert first.token_ids == []
    assert len(next_one.token_ids) == 1, "the row was not given to the next in the same step"


def test_while_decoding(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    sink = recorder()
    echo.engine.submit(echo_request("a", "abc"), sink, arrived_at=0.0)
    step(echo, 3)
    echo.engine.abort("a")
    step(echo)
    assert sink.reason == "aborted"
    assert sink.ends[0].num_completion_tokens == len(sink.token_ids) == 3
    assert echo.engine.stats().num_running == 0
    assert echo.engine.stats().num_aborted == 1


def test_from_the_listener_itself(make_engine):
    echo = make_engine(started=False, limits=LIMITS)
    seen = []

    def sink(event: object) -> None:
        seen.append(event)
        echo.engine.abort("a")

    echo.engine.submit(echo_request("a", "abcdef"), sink, arrived_at=0.0)
    step(echo, 3)
    assert len(seen) == 2
    assert seen[-1].reason.value == "aborted"


def test_unknown_and_ended_ids_are_ignored(make_engine):
    echo = make_engine()
    echo.engine.abort("nobody")
    assert echo.answer("a", "abc", SamplingParams(temperature=0)).text == "→abc"
    echo.engine.abort("a")
    assert echo.answer("a", "abc", SamplingParams(temperature=0)).text == "→abc"
    assert echo.engine.stats().num_aborted == 0


def test_a_request_for_no_token_that_is_aborted_ends_once(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    sink = recorder()
    request = echo_request("a", "abc", SamplingParams(max_tokens=0))
    echo.engine.submit(request, sink, arrived_at=0.0)
    echo.engine.abort("a")
    step(echo)
    assert len(sink.events) == 1
