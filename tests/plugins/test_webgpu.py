"""The WebGPU backend as far as an environment without it goes; `make webgpu` runs it for real."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from twostroke.backends import Backend, Device
from twostroke.backends.ort import CPU_PROVIDER, load_session, onnxruntime
from twostroke.errors import BackendError, BackendUnavailableError, OutOfMemoryError, PlacementError
from twostroke.types import Stroke
from twostroke_backends import webgpu, webgpu_memory
from twostroke_backends.webgpu import PROVIDER, WebGpuBackend, placement_of
from twostroke_backends.webgpu_attention import attention_error
from twostroke_backends.webgpu_memory import WebGpuBuffer, WebGpuMemory

GPU = Device(0, "a GPU", "gpu")
HAS_WEBGPU = PROVIDER in onnxruntime().get_available_providers()


class HostMemory(WebGpuMemory):
    """The same graphs on the CPU provider: what is uploaded stays in host memory."""

    def upload(self, values: Any, dtype: str, onto: Any = None) -> Any:
        session = self._session(dtype)
        value = onnxruntime().OrtValue.ortvalue_from_numpy(session.run(None, {"x": values})[0])
        if onto is not None:
            onto.update_inplace(values)
        return onto or value


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the backend's own memory and graphs run on the CPU provider."""
    monkeypatch.setattr(webgpu_memory, "_PROVIDER", CPU_PROVIDER)
    monkeypatch.setattr(webgpu, "WebGpuMemory", HostMemory)


def opened(**options: Any) -> WebGpuBackend:
    (spec,) = webgpu.twostroke_backends()
    backend = spec.open(GPU, options)
    assert isinstance(backend, WebGpuBackend)
    return backend


@pytest.mark.skipif(HAS_WEBGPU, reason="this onnxruntime has WebGPU")
def test_a_runtime_without_webgpu_says_what_to_install():
    reason = webgpu.probe().reason
    assert "environment of its own" in reason
    assert 'pip install "twostroke[webgpu]"' in reason


def test_a_machine_without_a_gpu_says_what_is_missing(monkeypatch):
    def none(options: object) -> None:
        raise RuntimeError("Failed to get a WebGPU adapter: No supported adapters")

    runtime = SimpleNamespace(get_available_providers=lambda: [PROVIDER])
    monkeypatch.setattr(webgpu, "onnxruntime", lambda: runtime)
    monkeypatch.setattr(webgpu, "WebGpuMemory", none)
    reason = webgpu.probe().reason
    assert "No supported adapters): install a driver for Vulkan" in reason
    with pytest.raises(BackendUnavailableError, match="No supported adapters"):
        opened()


def test_it_is_never_taken_by_auto():
    (spec,) = webgpu.twostroke_backends()
    assert spec.priority < 0  # the CPU's is 0


def test_options_become_the_runtimes(on_host):
    backend = opened(power_preference="low-power", validation_mode="full")
    assert isinstance(backend, Backend)
    assert backend.provider_options() == {
        "ep.webgpuexecutionprovider.powerPreference": "low-power",
        "ep.webgpuexecutionprovider.validationMode": "full",
    }
    assert opened().provider_options() == {}
    with pytest.raises(BackendError, match=r"did you mean 'validation_mode'.*power_preference"):
        opened(validation="full")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (2, 3), (1, 2, 0, 4)])
def test_memory_starts_as_zeros_and_keeps_its_shape_and_what_is_written(on_host, shape, dtype):
    buffer = opened().allocate(shape, dtype)
    assert isinstance(buffer, WebGpuBuffer)
    assert not buffer.read().any()
    buffer.write(np.full(shape, 7, dtype))
    assert buffer.read().shape == shape
    assert (buffer.read() == 7).all()
    with pytest.raises(BackendError, match="no row views"):
        buffer.rows(0, 1)
    with pytest.raises(BackendError, match="cannot take"):
        buffer.write(np.zeros((9,), dtype))


def test_memory_that_is_refused_names_the_bytes():
    class Full(HostMemory):
        def __init__(self) -> None:
            pass

        def upload(self, values: Any, dtype: str, onto: Any = None) -> Any:
            raise RuntimeError("Buffer allocation failed")

    with pytest.raises(OutOfMemoryError, match=r"24 bytes on the GPU.*float32\[2, 3\].*Buffer"):
        WebGpuBuffer(Full(), (2, 3), "float32")


def test_a_closed_backend_gives_no_memory(on_host):
    backend = opened()
    kept = backend.allocate((2,), "float32")
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="is closed"):
        backend.allocate((2,), "float32")
    kept.write(np.ones((2,), np.float32))  # lives on until it goes
    assert kept.read().tolist() == [1, 1]


def told(*assigned: tuple[str, str]) -> Any:
    """A session of which the runtime tells this."""
    nodes = [SimpleNamespace(op_type=op, domain="") for _, op in assigned]
    parts = [
        SimpleNamespace(ep_name=provider, get_nodes=lambda node=node: [node])
        for (provider, _), node in zip(assigned, nodes, strict=True)
    ]
    return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)


def test_what_the_cpu_does_not_have_is_the_gpus():
    declared = Counter({"MatMul": 4, "Unsqueeze": 2})
    placement = placement_of(told((CPU_PROVIDER, "Unsqueeze")), PROVIDER, declared)
    assert placement.nodes == {PROVIDER: 5, CPU_PROVIDER: 1}
    assert placement.strays == {"Unsqueeze": 1}


def test_a_session_that_is_all_on_the_cpu_leaves_the_gpu_nothing():
    declared = Counter({"MatMul": 1, "Unsqueeze": 1})
    assigned = told((CPU_PROVIDER, "MatMul"), (CPU_PROVIDER, "Unsqueeze"))
    assert placement_of(assigned, PROVIDER, declared).nodes == {CPU_PROVIDER: 2}


def test_a_runtime_that_tells_the_gpus_nodes_is_believed():
    declared = Counter({"MatMul": 9})
    assigned = told((PROVIDER, "MatMul"), (CPU_PROVIDER, "Unsqueeze"))
    assert placement_of(assigned, PROVIDER, declared).nodes == {PROVIDER: 1, CPU_PROVIDER: 1}


@pytest.mark.skipif(HAS_WEBGPU, reason="this onnxruntime has WebGPU")
def test_a_session_on_the_cpu_is_refused(on_host, bundle: Path):
    with (
        pytest.warns(UserWarning, match=PROVIDER),
        pytest.raises(PlacementError, match=f"asked for {PROVIDER}.*nodes on {CPU_PROVIDER}"),
    ):
        opened().open_session(bundle / "decode.onnx", Stroke.DECODE)


@pytest.mark.parametrize("num_new", [1, 16])
def test_the_trial_of_attention_passes_where_it_is_right(num_new):
    assert attention_error(num_new, CPU_PROVIDER, {}) < 1e-5


@pytest.mark.parametrize(("stroke", "num_new"), [(Stroke.PREFILL, 16), (Stroke.DECODE, 1)])
def test_wrong_attention_is_refused_and_the_other_dialect_named(
    on_host, monkeypatch, bundle: Path, stroke: Stroke, num_new: int
):
    def load(graph: Path, provider: str, *given: Any, read: Any, **more: Any) -> Any:
        return load_session(graph, CPU_PROVIDER, *given)

    asked = []

    def wrong(num_new: int, provider: str, options: object) -> float:
        asked.append(num_new)
        return 0.4

    monkeypatch.setattr(webgpu, "load_session", load)
    monkeypatch.setattr(webgpu, "attention_error", wrong)
    with pytest.raises(PlacementError, match=rf"wrongly.*`{stroke}: {{dialect: standard}}`"):
        opened().open_session(bundle / f"{stroke}.onnx", stroke)
    assert asked == [num_new]
    monkeypatch.setattr(webgpu, "attention_error", lambda *_: 1e-6)
    opened().open_session(bundle / f"{stroke}.onnx", stroke).close()
