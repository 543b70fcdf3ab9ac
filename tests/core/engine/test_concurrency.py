"""Whatever else is in the batch, a sequence gets what it gets alone."""

from __future__ import annotations

import random
import threading

import pytest

from twostroke.engine import EngineLimits
from twostroke.testing.engines import echo_request
from twostroke.types import SamplingParams

from .conftest import PLACEMENTS

LETTERS = "abcdefghijklmnop qrstuvwxyz"


def requests(seed: int, count: int):
    """Greedy and seeded requests of very different lengths."""
    choice = random.Random(seed)
    made = []
    for number in range(count):
        text = "".join(choice.choices(LETTERS, k=choice.choice([1, 3, 20, 60, 150])))
        sampling = choice.choice(
            [
                SamplingParams(temperature=0.0),
                SamplingParams(temperature=0.0, max_tokens=choice.randint(0, 30)),
                SamplingParams(seed=number, top_p=0.9, max_tokens=40),
                SamplingParams(seed=number, repetition_penalty=1.2, max_tokens=40),
                SamplingParams(temperature=0.0, frequency_penalty=1.5, max_tokens=40),
            ]
        )
        made.append(echo_request(f"r{number}", text, sampling))
    return made


def serve(echo, made, recorder, *, together: bool):
    """The tokens and the reason of each request."""
    sinks = []
    for request in made:
        sink = recorder()
        sinks.append(sink)
        echo.engine.submit(request, sink, arrived_at=0.0)
        while not together and not sink.ends:
            echo.engine.run_step()
    while not all(sink.ends for sink in sinks):
        echo.engine.run_step()
        echo.engine.check()
    return [(sink.token_ids, sink.reason) for sink in sinks]


@pytest.mark.parametrize("options", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_together_as_alone(make_engine, recorder, options, seed):
    made = requests(seed, 20)
    alone = make_engine(started=False, limits=EngineLimits(max_rows=1, kv_budget_bytes=2**20))
    expected = serve(alone, made, recorder, together=False)
    limits = EngineLimits(max_rows=8, prefill_chunk_tokens=16, kv_budget_bytes=2**21)
    echo = make_engine(started=False, limits=limits, **options)
    assert serve(echo, made, recorder, together=True) == expected
    assert any(reason == "length" for _, reason in expected)
    assert any(reason == "stop" for _, reason in expected)


def test_a_small_kv_budget_delays_but_changes_nothing(make_engine, recorder):
    made = requests(3, 12)
    wide = make_engine(started=False)
    expected = serve(wide, made, recorder, together=True)
    bytes_of_one_row = 520 * 32
    limits = EngineLimits(max_rows=8, kv_budget_bytes=bytes_of_one_row + 40 * 32)
    narrow = make_engine(started=False, limits=limits)
    assert narrow.engine.memory_plan.kv_tokens_total == 560
    assert serve(narrow, made, recorder, together=True) == expected


def test_a_device_that_pays_for_rows_gets_as_many_as_fit(make_engine, recorder):
    limits = EngineLimits(max_rows=8, kv_budget_bytes=3 * 520 * 32 + 31)
    echo = make_engine(started=False, limits=limits, lazy=False)
    assert echo.engine.stats().num_rows == 3
    assert len(serve(echo, requests(4, 6), recorder, together=True)) == 6


def test_threads_that_submit_and_abort_at_will_lose_nothing(make_engine, recorder):
    echo = make_engine(limits=EngineLimits(max_rows=4, max_queue=1000, kv_budget_bytes=2**20))
    sinks = {}

    def client(seed: int) -> None:
        for number, request in enumerate(requests(seed, 15)):
            name = f"{seed}-{number}"
            sinks[name] = sink = recorder()
            renamed = type(request)(name, request.prompt_ids, request.sampling)
            echo.engine.submit(renamed, sink, arrived_at=0.0)
            if number % 4 == 3:
                echo.engine.abort(f"{seed}-{number - 1}")

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    echo.engine.stop(drain_timeout_s=60)
    assert {len(sink.ends) for sink in sinks.values()} == {1}
    stats = echo.engine.stats()
    assert stats.num_finished + stats.num_aborted == 90
    assert stats.kv_tokens_used == stats.num_failed == 0
