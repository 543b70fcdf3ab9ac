"""OpenVINO on the CPU, really run: the kit, both strokes, hand-overs, options, placement."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime
import pytest

from twostroke.backends import Backend, BackendSpec, Device
from twostroke.backends.capabilities import InterruptibleBinding
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.config.schema import Config
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS
from twostroke.errors import BackendError, EngineError, PlacementError
from twostroke.life.observe import RunFacts
from twostroke.model import Model
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import Stroke
from twostroke_backends import (
    cpu,
    cpu_facts,
    openvino,
    openvino_properties,
    plugin_ep,
)
from twostroke_backends.plugin_ep import PluginEpBackend

PROVIDER = "OpenVINOExecutionProvider"
FOUND = openvino.probe()
pytestmark = pytest.mark.skipif(not FOUND.is_available, reason=FOUND.reason)
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle in both dialects; shared, so not to be changed."""
    model = TinyModel(dialects=("fused", "standard"), context_tokens=1024)
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "both", model)


@pytest.fixture
def backend() -> Iterator[PluginEpBackend]:
    backend = opened()
    yield backend
    backend.close()


def opened(**options: Any) -> PluginEpBackend:
    (spec,) = openvino.twostroke_backends()
    backend = spec.open(FOUND.devices[0], options)
    assert isinstance(backend, PluginEpBackend)
    return backend


def providers() -> set[str]:
    return {device.ep_name for device in onnxruntime.get_ep_devices()}


class TestConformance(BackendConformance):
    options: ClassVar = {"inference_precision": "f32", "threads": 2}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return openvino.twostroke_backends()[0]

    @pytest.fixture
    def bundle(self, both: Path) -> Path:
        return both


class TestConformanceOfThePluginByItsPackage(TestConformance):
    options: ClassVar = {
        "package": openvino.PACKAGE,
        "hardware": "cpu",
        "provider_options": {"inference_precision": "f32"},
    }

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return plugin_ep.twostroke_backends()[0]


@pytest.mark.parametrize(
    ("prefill", "decode"), [("openvino", "cpu"), ("cpu", "openvino"), ("openvino", "openvino")]
)
def test_answers_are_those_of_the_cpu_wherever_a_stroke_runs(both: Path, prefill, decode):
    def answers(prefill: str, decode: str) -> list[tuple[int, ...]]:
        with Model.open(
            both,
            backend="cpu",
            prefill={"backend": prefill, "options": exact(prefill)},
            decode={"backend": decode, "options": exact(decode)},
            prefill_chunk_tokens=16,
        ) as model:
            prompts = [tuple(range(4, 4 + length)) for length in (1, 5, 40)]
            return [model.complete(ids, **GREEDY).token_ids for ids in prompts]

    assert answers(prefill, decode) == answers("cpu", "cpu")


def exact(backend: str) -> dict[str, Any]:
    return {"inference_precision": "f32"} if backend == "openvino" else {"share_weights": False}


def test_every_node_of_a_plain_graph_is_openvinos_in_one_piece(both: Path, backend):
    session = backend.open_session(open_bundle(both).graph(Stroke.PREFILL, "standard"), "prefill")
    assert set(session.placement.nodes) == {PROVIDER}
    assert session.placement.nodes[PROVIDER] > 50


def test_a_graph_in_one_piece_does_not_claim_that_it_can_be_interrupted(both: Path, backend):
    def is_interruptible(backend: Backend, dialect: str) -> bool:
        graph = open_bundle(both).graph(Stroke.DECODE, dialect)
        session = backend.open_session(graph, Stroke.DECODE)
        buffers = [
            {
                name: backend.allocate((1,) * len(spec.shape), spec.dtype)
                for name, spec in specs.items()
            }
            for specs in (session.inputs, session.outputs)
        ]
        return isinstance(session.bind(*buffers), InterruptibleBinding)

    on_cpu = cpu.CpuBackend(cpu.probe().devices[0], {"share_weights": False})
    assert is_interruptible(on_cpu, "standard")
    assert not is_interruptible(backend, "standard")


def test_fused_operators_are_refused_and_the_other_dialect_is_named(both: Path, backend):
    graph = open_bundle(both).graph(Stroke.PREFILL, "fused")
    words = r"asked for OpenVINO.*GroupQueryAttention.*--dialect both"
    with pytest.raises(PlacementError, match=words) as caught:
        backend.open_session(graph, Stroke.PREFILL)
    assert caught.value.backend == "openvino"


def test_options_become_openvinos_properties():
    backend = opened(inference_precision="bf16", threads=3, pin_threads=False, cache=False)
    backend.close()
    (properties,) = json.loads(backend.provider_options["load_config"]).values()
    assert properties == {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": "3",
        "ENABLE_CPU_PINNING": "NO",
    }


def test_by_default_graphs_are_cached_and_floats_are_exact_without_amx(monkeypatch, cache: Path):
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_bf16",))
    backend = opened()
    backend.close()
    config = json.loads(backend.provider_options["load_config"])
    assert config["CPU"]["CACHE_DIR"] == str(cache / "openvino")
    assert config["CPU"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert config["CPU"]["INFERENCE_NUM_THREADS"] == str(cpu_facts.num_usable_threads())
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_bf16", "amx_bf16"))
    backend = opened()
    backend.close()
    assert "INFERENCE_PRECISION_HINT" not in backend.provider_options["load_config"]


def test_a_compiled_graph_is_read_again_from_the_cache(both: Path, cache: Path):
    graph = open_bundle(both).graph(Stroke.PREFILL, "standard")
    written = []
    for _ in range(2):
        backend = opened()
        backend.open_session(graph, Stroke.PREFILL).close()
        backend.close()
        written.append({blob: blob.stat().st_mtime_ns for blob in (cache / "openvino").iterdir()})
    assert len(written[0]) == 1
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inferense_precision": "f32"}, r"did you mean 'inference_precision'.*allowed.*threads"),
        ({"inference_precision": "int8"}, "must be one of f32, bf16, f16, not 'int8'"),
        ({"threads": 0}, "threads must be a whole number from 1 up to 1024"),
        ({"properties": "NUM_STREAMS"}, "properties must be a mapping of names to values"),
        ({"hardware": "gpu"}, r"no device with hardware gpu.*Found: OpenVINO.* on cpu"),
        ({"metadata": {"ov_device": "GPU.1"}}, r"metadata ov_device=GPU\.1.*ov_device=CPU"),
    ],
)
def test_what_an_option_may_be_is_told(options, words):
    with pytest.raises(BackendError, match=words):
        opened(**options)
    assert PROVIDER not in providers()  # nothing is left behind


def test_a_property_that_openvino_lacks_is_named(both: Path):
    backend = opened(properties={"NO_SUCH_THING": "1"})
    try:
        with pytest.raises(BackendError, match="no property 'NO_SUCH_THING'"):
            backend.open_session(open_bundle(both).graph(Stroke.PREFILL, "standard"), "prefill")
    finally:
        backend.close()


def test_options_choose_among_devices_and_may_not_contradict_the_index():
    opened(hardware="cpu", metadata={"ov_device": "CPU"}).close()
    (spec,) = openvino.twostroke_backends()
    with pytest.raises(BackendError, match=r"`device: 1` is a GPU.*choose device 0"):
        spec.open(Device(1, "a GPU", "gpu"), {"hardware": "cpu"})


def test_several_backends_share_one_registration(both: Path):
    assert PROVIDER not in providers()
    first, second = opened(), opened()
    first.close()
    first.close()  # harmless
    assert PROVIDER in providers()
    graph = open_bundle(both).graph(Stroke.DECODE, "standard")
    session = second.open_session(graph, Stroke.DECODE)
    second.close()
    assert PROVIDER not in providers()
    with pytest.raises(EngineError, match="is closed"):
        session.run(None, {})
    with pytest.raises(BackendError, match="closed"):
        second.open_session(graph, Stroke.DECODE)
    third = opened()
    third.open_session(graph, Stroke.DECODE)
    third.close()


def test_the_device_tells_its_facts_and_the_best_chunk(backend):
    device = backend.device
    assert (device.index, device.kind) == (0, "cpu")
    assert device.name == FOUND.devices[0].name
    assert device.prefill_chunk_tokens == openvino_properties.chunk_tokens()
    assert "float32" in device.dtypes
    assert device.memory_bytes
    assert device.details["provider"] == PROVIDER
    assert re.match(r"\d+\.\d+", device.details["provider_version"])


class ChunkLengths:
    """An observer that writes down how long the pieces of prompts are."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def ran(self, facts: RunFacts) -> None:
        if facts.stroke is Stroke.PREFILL:
            self.lengths.append(facts.num_new_tokens)

    def told(self, gap_s: float) -> None:
        pass

    def ended(self, end: object) -> None:
        pass


def test_the_chunk_of_prompts_is_the_backends_unless_the_yaml_says_another(both: Path):
    def longest(prefill: str, **settings: Any) -> int:
        with Model.open(both, backend="cpu", prefill={"backend": prefill}, **settings) as model:
            seen = ChunkLengths()
            model.engine.observers.add(seen)
            model.complete(tuple(range(4, 204)) * 3, max_tokens=1)
            return max(seen.lengths)

    assert Config().scheduler.prefill_chunk_tokens == "auto"
    assert longest("openvino") == openvino_properties.chunk_tokens()
    assert longest("cpu") == DEFAULT_CHUNK_TOKENS
    assert longest("openvino", prefill_chunk_tokens=64) == 64


def test_it_is_never_taken_by_auto():
    specs = load_plugins(extra=[]).backends
    assert specs["openvino"].priority < specs["cpu"].priority
    assert specs["plugin_ep"].priority < specs["cpu"].priority
