"""The engine over real graphs: tiny, random, run by ONNX Runtime on the CPU."""

from __future__ import annotations

import random

import pytest

from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.types import Request, SamplingParams

cpu = pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")
onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")

CONTEXT_TOKENS = 256


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture
def backends():
    def open_one():
        (device,) = cpu.probe().devices
        return cpu.CpuBackend(device, {"share_weights": False, "intra_op_threads": 1})

    return open_one


def make_requests(vocab_size: int) -> list[Request]:
    choice = random.Random(4)
    made = []
    for number, length in enumerate((1, 5, 16, 17, 40, 100, 3, 200)):
        ids = tuple(choice.randrange(4, vocab_size) for _ in range(length))
        seed = None if number % 2 else number
        sampling = SamplingParams(
            temperature=0.0 if seed is None else 0.7, seed=seed, max_tokens=24, ignore_eos=True
        )
        made.append(Request(f"r{number}", ids, sampling))
    return made


def serve(engine, requests, recorder):
    sinks = [recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink, arrived_at=0.0)
    while not all(sink.ends for sink in sinks):
        engine.run_step()
    engine.check()
    assert {sink.reason for sink in sinks} == {"length"}
    return [sink.token_ids for sink in sinks]


@pytest.mark.parametrize("num_backends", [1, 2])
def test_eight_at_once_get_what_each_gets_alone(tiny, backends, recorder, num_backends):
    limits = EngineLimits(max_rows=8, prefill_chunk_tokens=16, kv_budget_bytes=2**24)
    prefill = backends()
    decode = prefill if num_backends == 1 else backends()
    engine = build_engine(open_bundle(tiny), prefill, decode, limits)
    requests = make_requests(engine.vocab_size)
    alone = [serve(engine, [request], recorder)[0] for request in requests]
    assert serve(engine, requests, recorder) == alone
    assert len({tuple(ids) for ids in alone}) == len(alone)
    engine.stop()


def test_chunks_of_any_size_give_the_same_answers(tiny, backends, recorder):
    answers = []
    for chunk in (3, 64, 256):
        limits = EngineLimits(prefill_chunk_tokens=chunk, kv_budget_bytes=2**24)
        backend = backends()
        engine = build_engine(open_bundle(tiny), backend, backend, limits)
        answers.append(serve(engine, make_requests(engine.vocab_size), recorder))
        engine.stop()
    assert answers[0] == answers[1] == answers[2]


def test_a_row_is_filled_to_the_last_token_of_the_context(tiny, backends, recorder):
    backend = backends()
    limits = EngineLimits(max_rows=2, kv_budget_bytes=2**24)
    engine = build_engine(open_bundle(tiny), backend, backend, limits)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    requests = [
        Request(f"r{length}", tuple(5 + i % 200 for i in range(length)), sampling)
        for length in (CONTEXT_TOKENS - 1, CONTEXT_TOKENS - 9)
    ]
    answers = serve(engine, requests, recorder)
    assert [len(ids) for ids in answers] == [1, 9]
    engine.stop()
