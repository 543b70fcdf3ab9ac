"""Memory stays where it was planned, and nothing is held twice."""

import gc
import json
import random
import runpy
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from twostroke.backends.ort.buffers import HostBuffer
from twostroke.backends.ort.session import OrtSession
from twostroke.model import Model

from .int4 import in_4_bits

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
    assert watch.planned_bytes < 1.2 * 1024 * MiB, "a plan that holds for anything shows nothing"


class Mixed:
    """Requests of every kind in turn, of lengths that a seed chose; each knows how it must end."""

    def __init__(self, server):
        self.server = server
        self.kinds = (
            *(self.whole, self.streamed, self.gone, self.chosen, self.constrained),
            *(self.alike, self.refused, self.repeating, self.scored, self.stopped),
        )
        choose = random.Random(19)
        self.lengths = [(choose.randrange(1, 60), choose.randrange(1, 9)) for _ in range(300)]
        self.lengths[3] = (300, 40)

    def ask(self, number):
        num_prompt, max_tokens = self.lengths[number]
        self.kinds[number % len(self.kinds)](some_ids(number, num_prompt), max_tokens)
        return self.server.resident_bytes()

    def post(self, **body):
        reply = self.server.post("/v1/completions", {"temperature": 0, **body})
        assert reply.status == 200, reply.body
        return reply.json()

    def whole(self, ids, max_tokens):
        said = self.server.say("/generate", ids, max_tokens=max_tokens)
        assert said.num_tokens <= max_tokens

    def streamed(self, ids, max_tokens):
        self.server.say("/v1/completions", ids, stream=True, max_tokens=max_tokens)

    def gone(self, ids, max_tokens):
        body = {"prompt": ids * 4, "stream": True, "max_tokens": 200, "ignore_eos": True}
        with self.server.asking("/generate", body) as connection:
            if max_tokens % 2:
                connection.recv(17)

    def chosen(self, ids, max_tokens):
        said = self.post(prompt=ids, max_tokens=max_tokens, n=2, temperature=1.0)
        assert len(said["choices"]) == 2

    def constrained(self, ids, max_tokens):
        schema = {"enum": [f"{max_tokens} birds", "none"]}  # another grammar now and then
        said = self.server.say("/generate", ids, max_tokens=20, json_schema=schema)
        assert json.loads(said.text) in schema["enum"]

    def alike(self, ids, max_tokens):
        self.post(prompt=some_ids(0, 120) + ids, max_tokens=max_tokens)

    def refused(self, ids, max_tokens):
        self.server.post("/generate", {"prompt": ids, "max_tokens": -max_tokens}).error()

    def repeating(self, ids, max_tokens):
        self.post(prompt=ids[:8] * 6, max_tokens=12)  # drafts are right now and then

    def scored(self, ids, max_tokens):
        self.post(prompt=ids, max_tokens=1, echo=True, logprobs=2)

    def stopped(self, ids, max_tokens):
        self.server.say("/generate", "Once upon a time", max_tokens=24, stop=[".", "a "])


@pytest.mark.cases(19)
@pytest.mark.timeout(900)
def test_memory_is_flat_over_300_mixed_requests(serve, demo_bundle_int8):
    server = serve(
        demo_bundle_int8,
        models__0__speculation__mode="on",
        models__0__context_tokens=1024,
        scheduler__max_rows=4,
    )
    mixed, before = Mixed(server), server.load()
    with ThreadPoolExecutor(6) as pool:
        seen = list(pool.map(mixed.ask, range(300)))
    load = server.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 0)
    # Who is refused, gone or stopped by a string does not count as finished.
    assert load["num_finished"] - before["num_finished"] > 200
    for counted in ("num_aborted", "num_cached_tokens", "num_accepted_tokens"):
        assert load[counted] - before[counted] > 10, f"nothing of this kind came: {counted}"
    assert load["num_failed"] == 0
    last_third = seen[200:]
    assert max(last_third) < 1.05 * min(last_third)


@pytest.mark.cases(21)
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_two_graphs_hold_the_weights_once(demo_bundles, tmp_path, monkeypatch, precision):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    pss_kib = runpy.run_path(str(ROOT / "benchmarks" / "weights_once.py"))["pss_kib"]
    if precision == "int4":
        bundle = in_4_bits(demo_bundles["int8"], tmp_path / "int4")
    else:
        bundle = demo_bundles[precision]
    pss_kib(bundle, "prefill", "decode")  # the first start packs the weights
    one, both = pss_kib(bundle, "prefill"), pss_kib(bundle, "prefill", "decode")
    assert both <= 1.05 * one


class Spied:
    """What a model binds, and how often Python looks into its KV cache."""

    def __init__(self, monkeypatch):
        self.bound, self.num_looks = [], 0
        bind = OrtSession.bind

        def bind_and_note(session, inputs, outputs):
            self.bound.append((inputs, outputs))
            return bind(session, inputs, outputs)

        monkeypatch.setattr(OrtSession, "bind", bind_and_note)
        for name in ("read", "write"):
            monkeypatch.setattr(HostBuffer, name, self._counting(getattr(HostBuffer, name)))

    def _counting(self, method):
        def count_and_do(buffer, *values):
            self.num_looks += len(buffer.shape) == 4  # a row of the cache: heads, tokens, dim
            return method(buffer, *values)

        return count_and_do


def address(buffer):
    return buffer.array.ctypes.data


@pytest.mark.cases(22)
def test_a_step_copies_no_cache(demo_bundle_int8, monkeypatch):
    """While a row of 1,500 tokens (66 MiB) decodes nothing of it is read, written or bound anew by
    Python, nothing of its size is allocated, and the graph writes where it reads."""
    spied = Spied(monkeypatch)
    with Model.open(demo_bundle_int8, backend="cpu", max_rows=1, context_tokens=2048) as model:
        answer = iter(
            model.generate(some_ids(22, 1500), temperature=0, max_tokens=24, ignore_eos=True)
        )
        for _ in range(4):
            next(answer)
        num_bound, num_looks = len(spied.bound), spied.num_looks
        gc.collect()
        tracemalloc.start()
        try:
            assert len([token.token_id for token in answer]) == 20
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (len(spied.bound), spied.num_looks) == (num_bound, num_looks)
        inputs, outputs = next(  # of decode: one token
            both for both in reversed(spied.bound) if both[0]["input_ids"].shape == (1, 1)
        )
        present = [name for name in outputs if name.startswith("present.")]
        assert len(present) == 60
        for name in present:
            past = name.replace("present.", "past_key_values.")
            assert address(outputs[name]) == address(inputs[past])
    assert peak_bytes < 4 * MiB


@pytest.mark.cases(22)
def test_what_copies_the_cache_is_seen(demo_bundle_int8, monkeypatch):
    """The test above would notice: a prefix that is brought to another row is a look at both."""
    spied = Spied(monkeypatch)
    ids = some_ids(22, 100)
    with Model.open(demo_bundle_int8, backend="cpu", max_rows=2, context_tokens=512) as model:
        first = iter(model.generate(ids, temperature=0, max_tokens=30, ignore_eos=True))
        next(first)
        before = spied.num_looks
        model.complete([*ids, 5, 6], temperature=0, max_tokens=2)
        assert spied.num_looks >= before + 2 * 60
