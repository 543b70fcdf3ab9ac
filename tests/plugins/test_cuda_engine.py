"""Whole engines on the CUDA backend, up to the driver; see `cuda_on_host`."""

from __future__ import annotations

import dataclasses
import functools
import gc

import numpy as np
import pytest

from twostroke.backends import ProbeResult
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.engine.build import open_runner
from twostroke.errors import BackendError, EngineError
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import FinishedEvent, Request, SamplingParams, Stroke, TokenEvent
from twostroke_backends import cuda
from twostroke_backends.cuda_session import RecordingSession

from .cuda_on_host import GPU, open_on_host

MIXES = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 0.9, "top_p": 0.5},
    {"temperature": 1.0, "repetition_penalty": 1.4, "logprobs": 2},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model = TinyModel(context_tokens=1024)
    return make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle", model)


def requests(lengths) -> list[Request]:
    return [
        Request(
            f"r{number}",
            tuple((7 * number + position) % 250 + 4 for position in range(length)),
            SamplingParams(seed=number, max_tokens=12, ignore_eos=True, **MIXES[number % 5]),
        )
        for number, length in enumerate(lengths)
    ]


class Heard:
    def __init__(self) -> None:
        self.events = []

    def __call__(self, event) -> None:
        self.events.append(event)

    @property
    def tokens(self):
        return [(event.token_id, event.logprob) for event in self.events[:-1]]


def serve(engine, asked):
    heard = [Heard() for _ in asked]
    for request, sink in zip(asked, heard, strict=True):
        engine.submit(request, sink, arrived_at=0.0)
    while not all(sink.events and not isinstance(sink.events[-1], TokenEvent) for sink in heard):
        assert engine.run_step()
    for sink in heard:
        assert isinstance(sink.events[-1], FinishedEvent), sink.events[-1]
    engine.check()
    return [sink.tokens for sink in heard]


WAVES = ((5,), (3, 9, 17), (4, 4, 4, 4, 4), (300, 2), (7, 8, 9, 10, 11, 12), (2,))


def answers(tiny, backend):
    limits = EngineLimits(
        max_rows=6, kv_budget_bytes=2**27, prefill_chunk_tokens=64, reuse_prefixes="off"
    )
    engine = build_engine(open_bundle(tiny), backend, backend, limits, idle_after_s=0.0)
    found = []
    for lengths in WAVES:
        found.append(serve(engine, requests(lengths)))
        engine.run_step()  # the rest
    placements = engine.placements
    engine.stop()
    assert set(placements) == set(Stroke)
    return found


@pytest.fixture(scope="module")
def expected(tiny):
    spec = load_plugins().backends["cpu"]
    options = {"share_weights": False, "intra_op_threads": 1}
    return answers(tiny, spec.open(spec.probe().devices[0], options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cuda_graphs": "on", "reduce_logits": False},
        {"cuda_graphs": "off"},
        {"share_weights": False},
    ],
    ids=str,
)
def test_answers_are_those_of_the_cpu(tiny, expected, monkeypatch, options):
    backend, memory, replays = open_on_host(monkeypatch, **options)
    assert answers(tiny, backend) == expected
    records = options.get("cuda_graphs") != "off"
    report = backend.report()
    assert report["records_runs"] is records
    assert report["memory_told_by"] == "the CUDA driver"
    assert (report["num_recorded"], report["num_recorded"] > 0) == (len(replays.seen), records)
    assert report["num_recorded"] + report["num_replayed"] == replays.num_runs
    assert replays.num_plain_runs == 0
    backend.close()
    gc.collect()
    assert not memory.blocks
    assert not memory.pinned


def test_runs_are_of_few_kinds_and_over_memory_that_is_there(tiny, monkeypatch):
    """Blocks of rows, each once for each size of the cache; a step is one copy there, one back."""
    backend, memory, replays = open_on_host(monkeypatch)
    answers(tiny, backend)
    sizes = {}
    for addresses, on_host in replays.seen.values():
        assert list(on_host) == ["total_sequence_length"]
        sizes.setdefault(addresses["past_key_values.0.key"], on_host)
        assert addresses["past_key_values.0.key"] == addresses["present.0.key"]
    assert len(replays.seen) <= 11 * 6  # blocks of six rows, sizes of the cache
    assert {on_host["total_sequence_length"] for on_host in sizes.values()} == {256, 512}
    assert memory.num_fetched == replays.num_runs
    backend.close()


def test_a_session_that_others_open_is_the_graph_as_it_is(tiny, monkeypatch):
    """Who binds its logits to host memory must not get runs that are replayed."""
    backend, _, replays = open_on_host(monkeypatch, cuda_graphs="on")
    session = backend.open_session(tiny / "decode.onnx", Stroke.DECODE)
    assert not isinstance(session, RecordingSession)
    assert "inverse_temperature" not in session.inputs
    assert not session._session.records
    assert not replays.seen
    session.close()
    backend.close()


@pytest.mark.parametrize("content", ["weights", "no weights"])
def test_both_graphs_read_weights_at_the_same_addresses(tiny, monkeypatch, content):
    shares = content == "weights"
    backend, memory, _ = open_on_host(monkeypatch, share_weights=shares, cuda_graphs="off")
    first = backend.open_session(tiny / "prefill.onnx", Stroke.PREFILL)
    taken = memory.taken_bytes
    assert (taken > 0) is shares
    second = backend.open_decode_session(tiny / "decode.onnx")
    assert memory.taken_bytes == taken
    assert backend.report()["shared_weights_bytes"] == taken
    first.close()
    gc.collect()
    assert memory.taken_bytes == taken
    second.close()
    gc.collect()
    assert memory.taken_bytes == 0
    backend.close()


def test_a_session_computes_with_what_lies_on_the_device(tiny, monkeypatch):
    """Changing a byte on the device changes what both sessions answer: neither has a copy."""
    backend, _, _ = open_on_host(monkeypatch, cuda_graphs="off")
    make = cuda._session_options

    def unpacked():
        options = make()
        options.add_session_config_entry("session.disable_prepacking", "1")
        return options

    monkeypatch.setattr(cuda, "_session_options", unpacked)
    sessions = [backend.open_session(tiny / f"{stroke.value}.onnx", stroke) for stroke in Stroke]

    def logits(session, stroke):
        buffers = {
            "input_ids": np.array([[5, 6]] if stroke is Stroke.PREFILL else [[5]], np.int64),
            "seqlens_k": np.array([1 if stroke is Stroke.PREFILL else 0], np.int32),
            "total_sequence_length": np.array(2 if stroke is Stroke.PREFILL else 1, np.int32),
            "logit_index": np.array([[1]], np.int64),
        }
        feeds = {name: buffers[name] for name in session.inputs if name in buffers}
        cache = np.zeros((1, 2, 16, 16), np.float32)
        feeds |= {name: cache for name in session.inputs if name.startswith("past")}
        return session._session.run(["logits"], feeds)[0].copy()

    before = [logits(*pair) for pair in zip(sessions, Stroke, strict=True)]
    for shared in sessions[0]._kept:
        shared.buffer.write(shared.buffer.read()[::-1])
    after = [logits(*pair) for pair in zip(sessions, Stroke, strict=True)]
    for one, other in zip(before, after, strict=True):
        assert not np.allclose(one, other, equal_nan=True)
    for session in sessions:
        session.close()
    del sessions, shared
    gc.collect()
    backend.close()


def test_where_recording_fails_auto_goes_on_without_and_says_so(
    tiny, expected, monkeypatch, caplog
):
    backend, _, replays = open_on_host(monkeypatch)
    replays.num_to_fail = 1
    assert answers(tiny, backend) == expected
    report = backend.report()
    assert report["records_runs"] is False
    assert "operation not permitted when stream is capturing" in report["why_not"]
    assert caplog.text.count("decode runs without CUDA graphs: recording a run failed") == 1
    assert replays.num_plain_runs == replays.num_runs - 1
    backend.close()


def test_where_recording_fails_on_is_an_error(tiny, monkeypatch):
    backend, _, replays = open_on_host(monkeypatch, cuda_graphs="on")
    replays.num_to_fail = 1
    runner = open_runner(open_bundle(tiny), backend, backend, num_rows=2, context_tokens=64)
    runner.prefill(0, 0, (5, 6), is_last=True)
    with pytest.raises(EngineError, match="CUDA graphs are `on`, but recording a run failed"):
        runner.decode(0, (7,), (2,))
    runner.close()


class TestOnHost(BackendConformance):
    """The kit, as on hardware, with graphs recorded and logits reduced."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _host(cls):
        with pytest.MonkeyPatch.context() as patch:
            cls._opened = functools.partial(open_on_host, patch)
            yield

    @pytest.fixture(autouse=True)
    def _not_placed(self, check):
        if check.name == "placement":
            pytest.skip("the nodes are on the processor's provider, which stands in")

    @pytest.fixture
    def spec(self):
        spec = cuda.twostroke_backends()[0]
        return dataclasses.replace(
            spec,
            probe=lambda: ProbeResult((GPU,)),
            open=lambda device, options: type(self)._opened(**options)[0],
        )


@pytest.mark.gpu
@pytest.mark.skipif(not cuda.probe().is_available, reason=cuda.probe().reason or "none")
def test_on_a_gpu_no_option_changes_an_answer(tmp_path):
    """Recorded or not, reduced or not, weights shared or not: the same kernels see the same."""
    bundle = make_onnx_bundle(
        tmp_path / "halves", TinyModel(context_tokens=1024, kv_dtype="float16")
    )
    (device, *_) = cuda.probe().devices
    found = []
    for options in (
        {"cuda_graphs": "off", "reduce_logits": False, "share_weights": False},
        {"cuda_graphs": "off", "reduce_logits": False},
        {"cuda_graphs": "off"},
        {"cuda_graphs": "on"},
    ):
        backend = cuda.CudaBackend(device, options)
        found.append(answers(bundle, backend))
        assert backend.report()["records_runs"] is (options["cuda_graphs"] == "on")
        gc.collect()
        backend.close()
    assert all(each == found[0] for each in found)


def test_the_mode_is_one_of_three(monkeypatch):
    with pytest.raises(BackendError, match="cuda_graphs must be one of auto, on, off"):
        open_on_host(monkeypatch, cuda_graphs="yes")
