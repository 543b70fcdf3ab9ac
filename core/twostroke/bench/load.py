"""How requests follow each other: so many at once, or as they happen to come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from twostroke.bench.sample import Ask, Sample

Asking = Callable[[Ask], Awaitable[Sample]]


async def closed_loop(ask: Asking, asks: Sequence[Ask], num_streams: int) -> list[Sample]:
    """Keeps `num_streams` requests running until all of `asks` are answered."""
    waiting, samples = iter(asks), []

    async def stream() -> None:
        for each in waiting:
            samples.append(await ask(each))

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return samples


async def open_loop(
    ask: Asking,
    asks: Sequence[Ask],
    arrivals_s: Sequence[float],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
) -> list[Sample]:
    """Sends each of `asks` at its moment after the start, whatever became of those before it."""
    clock = clock or asyncio.get_running_loop().time
    started_at, running = clock(), []
    for each, arrival_s in zip(asks, arrivals_s, strict=True):
        left_s = started_at + arrival_s - clock()
        if left_s > 0:
            await sleep(left_s)
        running.append(asyncio.ensure_future(ask(each)))
    return list(await asyncio.gather(*running))
