"""A prompt has one greedy answer, to the last bit of its log-probabilities: alone, in company, cut
in chunks of any size, read again from the cache, and after others were cancelled."""

from __future__ import annotations

import random

import pytest

from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.types import Request, SamplingParams, TokenEvent

cpu = pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")
onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")

SAMPLING = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
LENGTHS = (17, 33, 34, 100)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture
def open_engine(tiny):
    opened = []

    def make(**limits):
        (device,) = cpu.probe().devices
        backend = cpu.CpuBackend(device, {"share_weights": False, "intra_op_threads": 1})
        limits = EngineLimits(kv_budget_bytes=2**24, **limits)
        opened.append(build_engine(open_bundle(tiny), backend, backend, limits))
        return opened[-1]

    yield make
    for engine in opened:
        engine.stop()


@pytest.fixture
def ask(recorder):
    """Answers prompts at once, as pairs of id and log-probability."""
    count = iter(range(10_000))

    def ask_all(engine, prompts):
        sinks = [recorder() for _ in prompts]
        for prompt, sink in zip(prompts, sinks, strict=True):
            engine.submit(Request(f"r{next(count)}", prompt, SAMPLING), sink, arrived_at=0.0)
        while not all(sink.ends for sink in sinks):
            engine.run_step()
        return [
            [(e.token_id, e.logprob.logprob) for e in sink.events if isinstance(e, TokenEvent)]
            for sink in sinks
        ]

    return ask_all


@pytest.fixture
def prompts():
    choose = random.Random(3)
    return [tuple(choose.choices(range(4, 250), k=length)) for length in LENGTHS]


@pytest.fixture
def expected(open_engine, ask, prompts):
    engine = open_engine()
    return [ask(engine, [prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("chunk_tokens", [2, 11, 16, 32, 33])
def test_in_chunks(open_engine, ask, prompts, expected, chunk_tokens):
    """Of 33 tokens, 16 and 32 leave a chunk of one."""
    engine = open_engine(prefill_chunk_tokens=chunk_tokens)
    assert [ask(engine, [prompt])[0] for prompt in prompts] == expected


def test_read_again_from_the_cache(open_engine, ask, prompts, expected):
    engine = open_engine()
    for _ in range(3):
        assert [ask(engine, [prompt])[0] for prompt in prompts] == expected


def test_in_company(open_engine, ask, prompts, expected):
    """Token by token; decoding several rows may round the last bit of a sum in another way."""
    engine = open_engine(prefill_chunk_tokens=16)
    together = ask(engine, [*prompts, *prompts])
    assert [[token for token, _ in answer] for answer in together] == [
        [token for token, _ in answer] for answer in [*expected, *expected]
    ]


def test_after_others_were_cancelled(open_engine, ask, prompts, expected, recorder):
    engine = open_engine(prefill_chunk_tokens=16)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(f"gone{number}", prompt, SAMPLING), recorder(), arrived_at=0.0)
        for _ in range(number + 1):
            engine.run_step()
        engine.abort(f"gone{number}")
    assert [ask(engine, [prompt])[0] for prompt in prompts] == expected
