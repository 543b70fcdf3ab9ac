"""Closed and open loops, on a clock that only they move."""

import asyncio

from twostroke.bench.load import closed_loop, open_loop
from twostroke.bench.sample import Ask, Sample
from twostroke.bench.scenarios import gaps_within


async def test_a_closed_loop_keeps_its_streams_busy():
    running = most = 0

    async def ask(each):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Sample(0.0, 1.0, text=each.prompt)

    asks = [Ask(str(number), 1) for number in range(10)]
    samples = await closed_loop(ask, asks, 3)
    assert most == 3
    assert sorted(sample.text for sample in samples) == [ask.prompt for ask in asks]


async def test_an_open_loop_waits_for_the_moment_and_for_nobody():
    now, sent = 100.0, []
    answered = asyncio.Event()

    async def sleep(seconds):
        nonlocal now
        await asyncio.sleep(0)  # lets what was sent begin
        now += seconds

    async def ask(each):
        sent.append((each.prompt, now))
        if len(sent) == 3:
            answered.set()
        await answered.wait()  # nobody is answered before the last one came
        return Sample(0.0, 1.0)

    asks = [Ask(name, 1) for name in "abc"]
    samples = await open_loop(ask, asks, [1.0, 1.5, 4.0], sleep=sleep, clock=lambda: now)
    assert len(samples) == 3
    assert [name for name, _ in sent] == ["a", "b", "c"]
    assert [moment >= due for (_, moment), due in zip(sent, (101.0, 101.5, 104.0), strict=True)]


def test_silence_is_a_gap():
    streams = [[1.0, 2.0, 5.0, 9.0], [1.5]]
    assert gaps_within(streams, 2.0, 8.0) == [3.0, 3.0, 6.0]
