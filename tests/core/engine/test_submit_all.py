"""Requests that belong together: all are taken, or none."""

from __future__ import annotations

import pytest

from twostroke.engine import AsyncEvents, EngineLimits, SyncEvents
from twostroke.errors import ContextLengthError, RequestError, UnavailableError
from twostroke.testing.engines import echo_request
from twostroke.types import FinishedEvent, FinishReason, SamplingParams, TokenEvent

LIMITS = EngineLimits(max_rows=2, max_queue=2, prefill_chunk_tokens=8, kv_budget_bytes=2**20)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def siblings(count: int, text: str = "hello", sampling: SamplingParams | None = None):
    return [echo_request(f"{text}-{number}", text, sampling) for number in range(count)]


def submit(echo, requests, sinks) -> None:
    echo.engine.submit_all(requests, sinks, arrived_at=0.0)


def test_more_than_rows_are_taken_where_the_queue_holds_the_rest(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    sinks = [recorder() for _ in range(4)]
    submit(echo, siblings(4), sinks)
    assert (echo.engine.stats().num_running, echo.engine.stats().num_waiting) == (2, 2)
    while any(not sink.ends for sink in sinks):
        echo.engine.run_step()
        echo.engine.check()
    assert [sink.reason for sink in sinks] == ["stop"] * 4


def test_a_full_queue_refuses_all_of_them_and_leaves_no_trace(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    first = recorder()
    submit(echo, siblings(1, "first"), [first])
    sinks = [recorder() for _ in range(4)]
    with pytest.raises(UnavailableError):
        submit(echo, siblings(4), sinks)
    stats = echo.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 0)
    echo.engine.check()
    submit(echo, siblings(3), sinks[:3])  # the same ids: none of them is known
    assert echo.engine.stats().num_waiting == 2
    assert [sink.events for sink in sinks] == [[]] * 4


def test_what_can_never_be_held_is_an_error_of_the_request(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    with pytest.raises(RequestError, match=r"5 answers are asked for at once, .* hold 4 together"):
        submit(echo, siblings(5), [recorder() for _ in range(5)])


@pytest.mark.parametrize("fault", ["twice", "too long"])
def test_one_bad_request_refuses_its_siblings(make_engine, recorder, fault):
    echo = make_engine(started=False, limits=LIMITS)
    good = echo_request("good", "abc")
    bad = good if fault == "twice" else echo_request("bad", "x" * 5000)
    with pytest.raises(RequestError if fault == "twice" else ContextLengthError):
        submit(echo, [good, bad], [recorder(), recorder()])
    assert (echo.engine.stats().num_running, echo.engine.stats().num_waiting) == (0, 0)


def test_their_prompt_is_read_once(make_engine):
    echo = make_engine(limits=EngineLimits(max_rows=3, kv_budget_bytes=2**20))
    text = "a prompt that is long enough to be reused"
    for _ in SyncEvents(echo.engine, siblings(3, text)):
        pass
    stats = echo.engine.stats()
    assert stats.num_prompt_tokens == 3 * len(text)
    assert stats.num_cached_tokens == 2 * (len(text) - 1)


async def test_events_of_all_are_iterated_with_their_index(make_engine):
    echo = make_engine()
    requests = [echo_request(text, text) for text in ("one", "two!", "three")]
    told: list[list[int]] = [[], [], []]
    ends = []
    async for index, event in AsyncEvents(echo.engine, requests):
        if isinstance(event, TokenEvent):
            told[index].append(event.token_id)
        else:
            ends.append((index, event.reason))
    assert told == [[3, *request.prompt_ids] for request in requests]
    assert sorted(ends) == [(index, FinishReason.STOP) for index in range(3)]


@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_leaving_early_ends_all_of_them(make_engine, how):
    echo = make_engine(step_delay_s=0.001)
    events = SyncEvents(echo.engine, siblings(2, sampling=ENDLESS))
    next(events)
    if how == "close":
        events.close()
        assert list(events) == []
    elif how == "with":
        with events:
            next(events)
    del events
    assert echo.engine._intake.wait_until_empty(60)
    assert echo.engine.stats().num_aborted == 2
    echo.engine.check()


async def test_one_of_them_can_be_ended_alone(make_engine):
    echo = make_engine(step_delay_s=0.001)
    events = AsyncEvents(echo.engine, siblings(2, sampling=ENDLESS))
    index, _ = await anext(events)
    events.abort_one(index)
    async for number, event in events:
        if isinstance(event, FinishedEvent):
            assert (number, event.reason) == (index, FinishReason.ABORTED)
            break
    assert echo.engine.stats().num_running == 1
    await events.aclose()
    assert [item async for item in events] == []
