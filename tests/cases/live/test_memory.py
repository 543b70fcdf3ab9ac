"""Memory stays where it was planned, and nothing is held twice."""

import gc
import random
import runpy
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from twostroke.model import Model

ROOT = Path(__file__).parents[3]
MiB = 2**20

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells what is needed")


def some_ids(seed, count):
    return random.Random(seed).choices(range(1000, 40000), k=count)


class Watch:
    """The most that a server held while a block ran, and the most that it had planned to."""

    def __init__(self, live):
        self.peak_bytes = self.planned_bytes = 0
        self._live = live
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._is_over.wait(0.05):
            memory = self._live.health()["memory"]
            self.peak_bytes = max(self.peak_bytes, memory["resident_bytes"])
            self.planned_bytes = max(self.planned_bytes, memory["planned_bytes"])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()


@pytest.mark.cases(18)
def test_a_long_prompt_stays_under_the_plan(live):
    """The logits of each position would add 1.5 GiB, attention scores in one piece 2.25."""
    with Watch(live) as watch:
        said = live.say("/generate", some_ids(18, 8000), max_tokens=4)
    assert said.num_prompt_tokens == 8000
    assert watch.peak_bytes < watch.planned_bytes


@pytest.mark.cases(19)
def test_memory_is_flat_over_300_requests(live):
    choose = random.Random(19)
    asked = [(choose.randrange(1, 100), choose.randrange(1, 16)) for _ in range(300)]
    asked[3] = (400, 40)
    seen = []

    def ask(number):
        length, max_tokens = asked[number]
        path = ("/generate", "/v1/completions")[number % 2]
        live.say(path, some_ids(number, length), stream=number % 3 == 0, max_tokens=max_tokens)
        seen.append(live.resident_bytes())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(300)))
    before, last = seen[200:250], seen[250:]
    assert max(last) < 1.05 * max(before)
    assert max(last) < 1.05 * min(before)


@pytest.mark.cases(21)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_two_graphs_hold_the_weights_once(demo_bundles, tmp_path, monkeypatch, precision):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path))
    pss_kib = runpy.run_path(str(ROOT / "benchmarks" / "weights_once.py"))["pss_kib"]
    bundle = demo_bundles[precision]
    pss_kib(bundle, "prefill", "decode")  # the first start packs the weights
    one, both = pss_kib(bundle, "prefill"), pss_kib(bundle, "prefill", "decode")
    assert both <= 1.1 * one


@pytest.mark.cases(22)
def test_a_step_copies_no_cache(demo_bundle_int8):
    """What Python and numpy allocate while a row of 1,500 tokens (66 MiB) decodes."""
    with Model.open(demo_bundle_int8, backend="cpu", max_rows=1, context_tokens=2048) as model:
        answer = iter(
            model.generate(some_ids(22, 1500), temperature=0, max_tokens=24, ignore_eos=True)
        )
        for _ in range(4):
            next(answer)
        gc.collect()
        tracemalloc.start()
        try:
            assert len([token.token_id for token in answer]) == 20
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 4 * MiB
