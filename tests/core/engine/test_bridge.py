from __future__ import annotations

import asyncio
import contextlib
import gc
import threading

import pytest

from twostroke.engine import AsyncEvents, EngineLimits, SyncEvents
from twostroke.errors import ContextLengthError
from twostroke.testing.engines import collect, echo_request
from twostroke.types import FailedEvent, FinishedEvent, Request, SamplingParams, TokenEvent

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def until_idle(echo) -> None:
    """Waits until nothing is in the engine; pytest's time limit is the only clock."""
    idle = echo.engine._intake.wait_until_empty(60)
    assert idle
    echo.engine.check()


async def test_tokens_arrive_in_order_and_the_end_comes_last(make_engine):
    echo = make_engine()
    events = [event async for _, event in AsyncEvents(echo.engine, [echo_request("a", "hello")])]
    assert [event.index for event in events[:-1]] == list(range(6))
    assert isinstance(events[-1], FinishedEvent)


async def test_many_streams_share_a_loop(make_engine):
    echo = make_engine()

    async def read(text: str) -> list[int]:
        events = AsyncEvents(echo.engine, [echo_request(text, text)])
        return [event.token_id async for _, event in events if isinstance(event, TokenEvent)]

    texts = [f"text number {number}" for number in range(12)]
    answers = await asyncio.gather(*map(read, texts))
    assert answers == [[3, *echo_request(text, text).prompt_ids] for text in texts]


@pytest.mark.parametrize("how", ["aclose", "aclosing", "cancel", "drop"])
async def test_leaving_early_frees_the_row(make_engine, how):
    echo = make_engine(step_delay_s=0.001)
    events = AsyncEvents(echo.engine, [echo_request("a", "hello", ENDLESS)])
    await anext(events)
    if how == "aclose":
        await events.aclose()
        assert [event async for event in events] == []
    elif how == "aclosing":
        async with contextlib.aclosing(events):
            await anext(events)
    elif how == "cancel":

        async def read_on() -> None:
            async for _ in events:
                pass

        reading = asyncio.create_task(read_on())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    else:
        del events
        gc.collect()
    await asyncio.to_thread(until_idle, echo)
    assert echo.engine.stats().num_aborted == 1


async def test_a_refusal_is_raised_before_anything_is_iterated(make_engine):
    echo = make_engine()
    with pytest.raises(ContextLengthError):
        AsyncEvents(echo.engine, [Request("a", (5,) * 600)])
    with pytest.raises(ContextLengthError):
        SyncEvents(echo.engine, [Request("a", (5,) * 600)])
    assert echo.engine.stats().num_aborted == 0


async def test_a_fault_ends_the_iteration(make_engine):
    echo = make_engine(fail_decode_runs=[1])
    events = [event async for _, event in AsyncEvents(echo.engine, [echo_request("a", "hello")])]
    assert isinstance(events[-1], FailedEvent)


def test_a_loop_that_is_gone_does_not_hurt_the_engine(make_engine):
    echo = make_engine(step_delay_s=0.001)
    kept = []

    async def leave() -> None:
        events = AsyncEvents(echo.engine, [echo_request("a", "hello", ENDLESS)])
        kept.append(events)
        await anext(events)

    asyncio.run(leave())
    until_idle(echo)
    assert echo.engine.stats().num_aborted == 1
    assert echo.answer("b", "next", SamplingParams(temperature=0)).text == "→next"


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_leaving_a_plain_iterator_early_frees_the_row(make_engine, how):
    echo = make_engine(step_delay_s=0.001)
    events = SyncEvents(echo.engine, [echo_request("a", "hello", ENDLESS)])
    next(events)
    if how == "close":
        events.close()
        assert list(events) == []
    elif how == "with":
        with events:
            next(events)
    else:
        del events
        gc.collect()
    until_idle(echo)
    assert echo.engine.stats().num_aborted == 1


def test_plain_iterators_in_threads_get_what_they_get_alone(make_engine):
    echo = make_engine(limits=EngineLimits(max_rows=4, kv_budget_bytes=2**20))
    texts = [f"thread {number}" * (number + 1) for number in range(8)]
    answers: dict[str, str] = {}

    def read(text: str) -> None:
        answers[text] = collect(SyncEvents(echo.engine, [echo_request(text, text)])).text

    threads = [threading.Thread(target=read, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {text: "→" + text for text in texts}
