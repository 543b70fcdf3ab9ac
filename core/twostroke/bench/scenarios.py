"""What a run looks at: a mix of requests, stalls, second turns, the health check.

Several endpoints take turns in short rounds, so that a machine that slows down for a while slows
all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from twostroke.bench.asks import poisson_arrivals, text_of
from twostroke.bench.client import Client
from twostroke.bench.figures import figures_of, spread_ms
from twostroke.bench.load import Asking, closed_loop, open_loop
from twostroke.bench.report import Result, named, result_of
from twostroke.bench.sample import Ask, Message, Sample

Asks = Callable[[int], Iterator[Ask]]  # of a seed, without end
Loop = Callable[[Asking, Sequence[Ask]], Awaitable[list[Sample]]]
_ENDLESS = 100_000  # tokens, which a server cuts to what its context holds
_WARM_UP_ASK = Ask("Once upon a time there was", 8)


@dataclass(frozen=True, slots=True)
class Mix:
    """Loads of `num_requests` each: for each of `streams` a closed loop, for each rate arrivals."""

    asks: Asks
    streams: Sequence[int]
    rates_per_s: Sequence[float]
    num_requests: int
    num_rounds: int  # into which the requests of a load are split


async def warm_up(clients: Iterable[Client], num_requests: int) -> None:
    """Asks each endpoint a little, so that nothing is made for the first time later on."""
    for client in clients:
        await closed_loop(client.ask, [_WARM_UP_ASK] * num_requests, 1)


async def run_mix(clients: Sequence[Client], mix: Mix, *, seed: int) -> list[Result]:
    """The figures of each load on each endpoint; all are asked the same."""
    results: list[Result] = []
    for num_streams in mix.streams:
        name = f"{num_streams} streams" if num_streams > 1 else "1 stream"
        asks = list(itertools.islice(mix.asks(seed + num_streams), mix.num_requests))
        loop = partial(closed_loop, num_streams=num_streams)
        results += await _in_rounds(clients, name, asks, mix.num_rounds, loop)
    for rate in mix.rates_per_s:
        asks = list(itertools.islice(mix.asks(seed), mix.num_requests))
        loop = partial(_arriving, rate_per_s=rate, seed=seed)
        results += await _in_rounds(clients, f"{rate:g} a second", asks, mix.num_rounds, loop)
    return results


async def _arriving(
    ask: Asking, asks: Sequence[Ask], *, rate_per_s: float, seed: int
) -> list[Sample]:
    return await open_loop(ask, asks, poisson_arrivals(rate_per_s, len(asks), seed=seed))


async def _in_rounds(
    clients: Sequence[Client], name: str, asks: Sequence[Ask], num_rounds: int, loop: Loop
) -> list[Result]:
    """Runs a share of `asks` on each endpoint in turn, then the next share."""
    found: list[list[list[Sample]]] = [[] for _ in clients]  # of each endpoint, in rounds
    for share in range(num_rounds):
        for samples, client in zip(found, clients, strict=True):
            samples.append(await loop(client.ask, asks[share::num_rounds]))
    return [
        result_of(name, client.target.label, figures_of(*rounds))
        for client, rounds in zip(clients, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Stall:
    """`num_streams` answers run; after `quiet_s` seconds `num_long` long prompts come in turn."""

    num_streams: int = 4
    num_long: int = 3
    long_tokens: int = 4000
    quiet_s: float = 3.0


async def run_stall(client: Client, stall: Stall, *, seed: int) -> Result:
    """How long running streams stand still while long prompts are read."""
    choose = random.Random(seed)
    times: list[list[float]] = [[] for _ in range(stall.num_streams)]
    all_run = asyncio.Event()

    def note(moments: list[float], moment: float) -> None:
        moments.append(moment)
        if all(times):
            all_run.set()

    streams = [
        asyncio.ensure_future(
            client.ask(Ask(text_of(32, choose), _ENDLESS), partial(note, moments))
        )
        for moments in times
    ]
    waiting = asyncio.ensure_future(all_run.wait())
    try:
        await asyncio.wait({waiting, *streams}, return_when=asyncio.FIRST_COMPLETED)
        quiet_from = client.clock()
        await asyncio.sleep(stall.quiet_s)
        long_from = client.clock()
        asks = [Ask(text_of(stall.long_tokens, choose), 1) for _ in range(stall.num_long)]
        long = await closed_loop(client.ask, asks, 1)
        until = client.clock()
    finally:
        ended = [stream.result() for stream in streams if stream.done()]
        for task in (waiting, *streams):
            task.cancel()
        await asyncio.gather(waiting, *streams, return_exceptions=True)
    before = spread_ms(gaps_within(times, quiet_from, long_from))
    during = spread_ms(gaps_within(times, long_from, until))
    figures = figures_of(long)
    values = {
        "streams": stall.num_streams,
        "streams that ended": len(ended),
        "longest gap before ms": before.most,
        "longest gap during ms": during.most,
        "gap before p50 ms": before.p50,
        "gap during p50 ms": during.p50,
        "gap during p99 ms": during.p99,
        "long prompts": figures.num_requests - figures.num_errors,
        "long prompt tokens": figures.num_prompt_tokens,
        "long TTFT p50 ms": figures.ttft.p50,
    }
    errors = [sample.error for sample in ended if sample.error is not None]
    first_error = errors[0] if errors else figures.first_error
    load = f"{stall.num_long} prompts of {stall.long_tokens} tokens"
    return Result(load, client.target.label, values, first_error)


def gaps_within(times: Iterable[Sequence[float]], start: float, end: float) -> list[float]:
    """The gaps of all streams that reach into [start, end], cut off at its ends.

    A stream that says nothing in that time is one gap: silence is what a stall is.
    """
    gaps: list[float] = []
    for moments in times:
        inside = [moment for moment in moments if start < moment < end]
        gaps += [after - before for before, after in pairwise([start, *inside, end])]
    return gaps


@dataclass(frozen=True, slots=True)
class Turns:
    """`num_chats` chats, one after the other: a system prompt of their own, and two questions."""

    num_chats: int = 8
    system_tokens: int = 600
    answer_tokens: int = 32


async def run_turns(client: Client, turns: Turns, *, seed: int) -> Result:
    """How soon second turns begin, which bring all that was read before, against first ones."""
    choose = random.Random(seed)
    first: list[Sample] = []
    second: list[Sample] = []
    for _ in range(turns.num_chats):
        messages: list[Message] = [
            {"role": "system", "content": text_of(turns.system_tokens, choose)},
            {"role": "user", "content": text_of(24, choose)},
        ]
        first.append(await client.ask(Ask(messages, turns.answer_tokens)))
        messages += [
            {"role": "assistant", "content": first[-1].text},
            {"role": "user", "content": text_of(24, choose)},
        ]
        second.append(await client.ask(Ask(messages, turns.answer_tokens)))
    begun, gone_on = figures_of(first), figures_of(second)
    values = {
        "chats": turns.num_chats,
        "errors": begun.num_errors + gone_on.num_errors,
        "first prompt tokens": begun.num_prompt_tokens / turns.num_chats,
        "second prompt tokens": gone_on.num_prompt_tokens / turns.num_chats,
        **named("first TTFT", begun.ttft),
        **named("second TTFT", gone_on.ttft),
        "second / first p50": gone_on.ttft.p50 / begun.ttft.p50,
    }
    error = begun.first_error or gone_on.first_error
    return Result(f"{turns.num_chats} chats", client.target.label, values, error)


@dataclass(frozen=True, slots=True)
class Health:
    """`num_checks` GETs of /health, while streams run and a prompt of `prompt_bytes` is sent."""

    num_checks: int = 300
    num_streams: int = 8
    prompt_bytes: int = 1_000_000
    pause_s: float = 0.02


async def run_health(client: Client, health: Health, *, seed: int) -> Result:
    """How long a health check takes on a busy server. The large prompt may well be refused."""
    choose = random.Random(seed)
    large = Ask(text_of(health.prompt_bytes // 4, choose)[: health.prompt_bytes], 1)
    streams = [
        asyncio.ensure_future(_again_and_again(client, Ask(text_of(32, choose), 256)))
        for _ in range(health.num_streams)
    ]
    prompts = asyncio.ensure_future(_again_and_again(client, large))
    checks: list[tuple[int, float]] = []
    try:
        for _ in range(health.num_checks):
            checks.append(await client.get("/health"))
            await asyncio.sleep(health.pause_s)
    finally:
        for task in (*streams, prompts):
            task.cancel()
        await asyncio.gather(*streams, prompts, return_exceptions=True)
    spread = spread_ms(seconds for status, seconds in checks if status == 200)
    values = {
        "checks": len(checks),
        "checks that failed": sum(status != 200 for status, _ in checks),
        **named("health", spread),
        "health most ms": spread.most,
    }
    return Result(f"{health.num_streams} streams, 1 large prompt", client.target.label, values)


async def _again_and_again(client: Client, ask: Ask) -> None:
    while True:
        await client.ask(ask)
