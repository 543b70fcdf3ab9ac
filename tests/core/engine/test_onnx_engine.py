"""The engine over real graphs: tiny, random, run by ONNX Runtime on the CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.errors import ContractError, EngineError
from twostroke.types import Request, SamplingParams, Stroke

cpu = pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")
onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")

CONTEXT_TOKENS = 256


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model = onnx_bundles.TinyModel(dialects=("fused", "standard"))
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle", model)


@pytest.fixture(scope="module")
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


PLACEMENTS = {
    "in place": (1, "fused", "fused"),
    "in place, two backends": (2, "fused", "fused"),
    "concatenating": (1, "standard", "standard"),
    "concatenating, two backends": (2, "standard", "standard"),
    "concatenating prefill": (1, "standard", "fused"),
    "concatenating prefill, two backends": (2, "standard", "fused"),
    "concatenating decode": (1, "fused", "standard"),
}


@pytest.fixture
def open_engine(tiny, backends):
    opened = []

    def open_one(num_backends, *dialects, **limits):
        prefill = backends()
        decode = prefill if num_backends == 1 else backends()
        engine = build_engine(
            open_bundle(tiny),
            prefill,
            decode,
            EngineLimits(kv_budget_bytes=2**25, **limits),
            dialects=dict(zip(Stroke, dialects, strict=True)),
        )
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.stop()


@pytest.fixture(scope="module")
def expected(tiny, backends, recorder):
    """What each request gets alone, in a cache that is written in place."""
    backend = backends()
    limits = EngineLimits(kv_budget_bytes=2**24)
    engine = build_engine(open_bundle(tiny), backend, backend, limits)
    requests = make_requests(engine.vocab_size)
    alone = [serve(engine, [request], recorder)[0] for request in requests]
    engine.stop()
    assert len({tuple(ids) for ids in alone}) == len(alone)
    return alone


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_eight_at_once_get_what_each_gets_alone(open_engine, expected, recorder, placement):
    engine = open_engine(*placement, max_rows=8, prefill_chunk_tokens=16)
    requests = make_requests(engine.vocab_size)
    assert serve(engine, requests, recorder) == expected
    assert [serve(engine, [request], recorder)[0] for request in requests] == expected


@pytest.mark.parametrize("dialect", ["fused", "standard"])
def test_chunks_of_any_size_give_the_same_answers(open_engine, expected, recorder, dialect):
    for chunk in (3, 64, 256):
        engine = open_engine(1, dialect, dialect, prefill_chunk_tokens=chunk)
        assert serve(engine, make_requests(engine.vocab_size), recorder) == expected


def test_two_graphs_that_keep_other_numbers_are_refused(tiny, backends, tmp_path):
    half = open_bundle(
        onnx_bundles.make_onnx_bundle(
            tmp_path / "half", onnx_bundles.TinyModel(kv_dtype="float16", dialects=("standard",))
        )
    )
    whole = open_bundle(tiny)

    class Uneven:
        manifest = whole.manifest

        def graph(self, stroke, dialect=None):
            return (half if stroke is Stroke.PREFILL else whole).graph(stroke, "standard")

    opened = []

    class Counting(cpu.CpuBackend):
        def open_session(self, graph, stroke):
            opened.append(super().open_session(graph, stroke))
            return opened[-1]

    (device,) = cpu.probe().devices
    backend = Counting(device, {"share_weights": False})
    words = r"prefill.*\.onnx keeps its KV cache in float16, decode.*\.onnx in float32"
    with pytest.raises(ContractError, match=words):
        build_engine(
            Uneven(),
            backend,
            backend,
            EngineLimits(kv_budget_bytes=2**25),
            dialects=dict.fromkeys(Stroke, "standard"),
        )
    assert len(opened) == 2
    for session in opened:
        with pytest.raises(EngineError, match="closed"):
            session.run(None, {})


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_score_is_what_decode_says_step_by_step(open_engine, placement):
    runner = open_engine(*placement, max_rows=2)._runner
    ids = make_requests(runner.vocab_size)[4].prompt_ids
    steps = [runner.prefill(0, 0, ids[:1], is_last=True).copy()]
    steps += [runner.decode(0, [token], [n]).copy() for n, token in enumerate(ids[1:], 1)]
    first = runner.score(1, 0, ids[:15]).copy()
    scores = np.concatenate([first, runner.score(1, 15, ids[15:])])
    assert np.abs(scores - np.concatenate(steps)).max() < 1e-4 * np.abs(scores).max()


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_row_is_filled_to_the_last_token_of_the_context(open_engine, recorder, placement):
    engine = open_engine(*placement, max_rows=2)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    requests = [
        Request(f"r{length}", tuple(5 + i % 200 for i in range(length)), sampling)
        for length in (CONTEXT_TOKENS - 1, CONTEXT_TOKENS - 9)
    ]
    answers = serve(engine, requests, recorder)
    assert [len(ids) for ids in answers] == [1, 9]


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_reused_prefixes_give_what_a_fresh_engine_gives(open_engine, recorder, placement):
    limits = {"max_rows": 4, "prefill_chunk_tokens": 16}
    fresh = open_engine(1, "fused", "fused", reuse_prefixes="off", **limits)
    engine = open_engine(*placement, **limits)
    system = make_requests(engine.vocab_size)[5].prompt_ids  # 100 tokens
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def ask(prompts):
        requests = [Request(f"r{n}", prompt, sampling) for n, prompt in enumerate(prompts)]
        answers = serve(engine, requests, recorder)
        assert answers == [serve(fresh, [request], recorder)[0] for request in requests]
        return answers

    first = [(*system, 20 + n, 30 + n) for n in range(6)]  # six at once, on four rows
    second = [(*p, *a, 40 + n) for n, (p, a) in enumerate(zip(first, ask(first), strict=True))]
    ask(second)
    for prompt in reversed(second):
        ask([prompt])
    stats = engine.stats()
    assert stats.num_cached_tokens > 0.9 * stats.num_prompt_tokens - 2 * len(system)
    assert fresh.stats().num_cached_tokens == 0


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_drafts_change_nothing(open_engine, recorder, placement):
    choice = random.Random(9)
    answers = []
    for mode in ("off", "auto"):
        engine = open_engine(*placement, max_rows=4, speculation=mode, reuse_prefixes="off")
        speculation = engine._intake._scheduler.speculation
        if mode == "auto" and speculation is not None:
            speculation.mode = "on"  # auto would decide by the clock
        choice.seed(9)
        requests = []
        for number in range(6):
            period = [choice.randrange(4, engine.vocab_size) for _ in range(3)]
            sampling = SamplingParams(
                temperature=0.0 if number % 2 else 0.3,
                seed=number,
                max_tokens=40,
                ignore_eos=True,
                logit_bias=dict.fromkeys(period, 8.0),  # so that guesses are often right
            )
            requests.append(Request(f"r{number}", tuple(period * 5), sampling))
        answers.append(serve(engine, requests, recorder))
    assert answers[0] == answers[1]
    if speculation is not None:
        stats = engine.stats()
        assert stats.num_accepted_tokens > 20
        assert stats.num_accepted_tokens < stats.num_drafted_tokens
    else:
        assert placement not in ((1, "fused", "fused"), (1, "standard", "standard"))


@pytest.mark.parametrize(
    ("placement", "way"),
    [
        ("in place", "shared"),
        ("in place, two backends", "shared"),  # both bind host memory
        ("concatenating, two backends", "shared"),
        ("concatenating prefill", "one copy in host memory"),
        ("concatenating prefill, two backends", "one copy in host memory"),
    ],
)
def test_a_cache_is_copied_only_where_layouts_differ(open_engine, placement, way):
    assert open_engine(*PLACEMENTS[placement]).hand_over_way == way
