from __future__ import annotations

import sys
import threading
import types
from pathlib import Path

import onnx
import onnxruntime
import pytest

from twostroke.backends import Backend, Device
from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.backends.ort import CPU_PROVIDER, load_session
from twostroke.errors import BackendError, BackendUnavailableError, PlacementError
from twostroke.types import Stroke
from twostroke_backends import directml
from twostroke_backends.directml import PROVIDER, DirectMLBackend

ADAPTER = Device(1, "An adapter", "gpu")


@pytest.fixture
def plain_graph(tmp_path: Path) -> Path:
    """A graph of plain operators: y = x x."""
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"])
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy"
    )
    graph = onnx.helper.make_graph([node], "plain", [x], [y])
    path = tmp_path / "decode.standard.onnx"
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def runtime(monkeypatch, providers: list[str], *names: str) -> None:
    """Has the plugin see an onnxruntime with these providers and DirectML devices."""

    def device(name: str) -> types.SimpleNamespace:
        hardware = types.SimpleNamespace(metadata={"Description": name} if name else {}, vendor="")
        return types.SimpleNamespace(ep_name=PROVIDER, device=hardware)

    cpu = types.SimpleNamespace(ep_name=CPU_PROVIDER, device=None)
    fake = types.SimpleNamespace(
        get_available_providers=lambda: providers,
        get_ep_devices=lambda: [cpu, *map(device, names)],
    )
    monkeypatch.setattr(directml, "onnxruntime", lambda: fake)


@pytest.mark.skipif(sys.platform == "win32", reason="DirectML may be here")
def test_elsewhere_than_on_windows_it_says_so():
    with pytest.raises(BackendUnavailableError, match="DirectML exists on Windows only"):
        open_backend(load_plugins(), "directml")


def test_a_runtime_without_directml_says_what_to_install(monkeypatch):
    runtime(monkeypatch, [CPU_PROVIDER])
    reason = directml.find_adapters("win32").reason
    assert 'pip install "twostroke[directml]"' in reason
    assert "environment of its own" in reason


def test_adapters_are_listed_by_name(monkeypatch):
    runtime(monkeypatch, [PROVIDER, CPU_PROVIDER], "Radeon", "")
    found = directml.find_adapters("win32").devices
    assert [(d.index, d.name) for d in found] == [(0, "Radeon"), (1, "DirectX 12 adapter")]


def test_without_a_list_there_is_the_default_adapter(monkeypatch):
    runtime(monkeypatch, [PROVIDER, CPU_PROVIDER])
    (device,) = directml.find_adapters("win32").devices
    assert "default" in device.name


def test_a_probe_never_raises(monkeypatch):
    monkeypatch.setattr(directml.sys, "platform", "win32")

    def explode() -> None:
        raise RuntimeError("a broken install")

    monkeypatch.setattr(directml, "onnxruntime", explode)
    assert "a broken install" in directml.probe().reason


def test_the_rules_are_kept():
    options = directml.session_options()
    assert options.enable_mem_pattern is False
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    backend = DirectMLBackend(ADAPTER, {})
    assert isinstance(backend, Backend)
    assert not backend.has_row_views
    assert not backend.touches_lazily
    backend.close()


def test_options_become_the_runtimes():
    assert DirectMLBackend(ADAPTER, {}).provider_options() == {"device_id": "1"}
    given = {"performance_preference": "high_performance", "disable_metacommands": True}
    assert DirectMLBackend(ADAPTER, given).provider_options() == {
        "device_id": "1",
        "performance_preference": "high_performance",
        "disable_metacommands": "true",
    }
    with pytest.raises(BackendError, match=r"'device_id'.*performance_preference"):
        DirectMLBackend(ADAPTER, {"device_id": 0})


def test_fused_attention_is_refused_before_anything_is_loaded(bundle, monkeypatch):
    """Its kernel ignores the rotation inside and the tokens before a chunk: a wrong answer."""
    monkeypatch.setattr(directml, "load_session", lambda *a, **k: pytest.fail("it was loaded"))
    with pytest.raises(PlacementError, match=r"prefill\.onnx .*--dialect standard") as caught:
        DirectMLBackend(ADAPTER, {}).open_session(bundle / "prefill.onnx", Stroke.PREFILL)
    assert caught.value.backend == "directml"  # so that `fallback` may take over


def test_it_asks_for_plain_graphs():
    (spec,) = directml.twostroke_backends()
    assert spec.dialect == {Stroke.PREFILL: "standard", Stroke.DECODE: "standard"}


@pytest.mark.skipif(
    PROVIDER in onnxruntime.get_available_providers(), reason="this onnxruntime has DirectML"
)
def test_a_session_that_lands_on_the_cpu_is_refused(plain_graph):
    """An unknown provider gives a CPU session and a warning; the placement tells."""
    with (
        pytest.warns(UserWarning, match=PROVIDER),
        pytest.raises(PlacementError, match=f"asked for {PROVIDER}.*nodes on {CPU_PROVIDER}"),
    ):
        DirectMLBackend(ADAPTER, {}).open_session(plain_graph, Stroke.DECODE)


def test_one_run_at_a_time(bundle):
    session = load_session(
        bundle / "decode.onnx",
        CPU_PROVIDER,
        {},
        onnxruntime.SessionOptions(),
        one_run_at_a_time=True,
    )
    running, most, guard = 0, 0, threading.Lock()

    class Slow:
        """Counts the runs that are under way at once."""

        def run_with_iobinding(self, binding: object, run_options: object) -> None:
            nonlocal running, most
            with guard:
                running += 1
                most = max(most, running)
            threading.Event().wait(0.01)
            with guard:
                running -= 1

    session._session = Slow()
    threads = [threading.Thread(target=session.run, args=(None, {})) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
