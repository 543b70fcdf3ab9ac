from __future__ import annotations

import logging
import types
from typing import Any

import pytest

from twostroke.backends import BackendSpec, Device, Placement, ProbeResult
from twostroke.backends.choose import AUTO, Opened, open_backend, open_with_fallback
from twostroke.backends.discovery import PluginRecord, Plugins
from twostroke.errors import (
    BackendError,
    BackendUnavailableError,
    InstallError,
    PlacementError,
    PluginError,
)
from twostroke.install import RuntimeDistribution


class Fake:
    """A backend that remembers what it was opened with, and whether it was closed."""

    def __init__(self, name: str, device: Device, options: dict[str, Any]) -> None:
        self.name, self.device, self.options = name, device, options
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def spec(name: str, *, priority: int = 0, reason: str = "", num_devices: int = 1) -> BackendSpec:
    devices = tuple(Device(i, f"{name} {i}", "gpu") for i in range(0 if reason else num_devices))

    def open_fake(device: Device, options: dict[str, Any]) -> Fake:
        if "bad" in options:
            raise BackendError(f"{name} has no option 'bad'")
        return Fake(name, device, options)

    return BackendSpec(name, 1, "", lambda: ProbeResult(devices, reason), open_fake, priority)


def plugins(*specs: BackendSpec, records: tuple[PluginRecord, ...] = ()) -> Plugins:
    return Plugins({s.name: s for s in specs}, {}, records)


CPU = spec("cpu")
GPU = spec("gpu", priority=10, num_devices=2)
NO_GPU = spec("gpu", priority=10, reason="libgpu.so is missing: install it.")


def test_auto_takes_the_highest_priority_that_has_a_device():
    assert open_backend(plugins(CPU, GPU)).backend.name == "gpu"
    opened = open_backend(plugins(CPU, NO_GPU))
    assert (opened.backend.name, opened.requested) == ("cpu", AUTO)
    assert opened.reason_for_fallback is None


def test_auto_with_nothing_says_why_for_each():
    none = plugins(NO_GPU, spec("npu", reason="no device."))
    with pytest.raises(BackendUnavailableError, match=r"gpu: libgpu.so is missing.*npu: no device"):
        open_backend(none)


def test_a_named_backend_gets_its_device_and_options():
    opened = open_backend(plugins(CPU, GPU), "gpu", 1, {"threads": 2})
    assert opened.backend.device.name == "gpu 1"
    assert opened.backend.options == {"threads": 2}
    with pytest.raises(BackendError, match=r"'gpu' has no device 2.*0 \(gpu 0\), 1 \(gpu 1\)"):
        open_backend(plugins(CPU, GPU), "gpu", 2)


def test_a_named_backend_that_is_absent_fails_with_the_probes_reason():
    with pytest.raises(BackendUnavailableError) as caught:
        open_backend(plugins(CPU, NO_GPU), "gpu")
    assert str(caught.value) == (
        "The backend 'gpu' cannot be used here: libgpu.so is missing: install it."
    )


def test_a_fallback_takes_over_and_is_reported(caplog):
    with caplog.at_level(logging.WARNING):
        opened = open_backend(plugins(CPU, NO_GPU), "gpu", 1, {"threads": 2}, ["cpu"])
    assert (opened.backend.name, opened.requested) == ("cpu", "gpu")
    assert "libgpu.so is missing" in opened.reason_for_fallback
    assert "Running on cpu instead" in opened.reason_for_fallback
    assert opened.reason_for_fallback in caplog.text
    assert opened.backend.options == {}  # another backend's options are not its own


def test_no_fallback_is_needed_where_the_named_one_works(caplog):
    with caplog.at_level(logging.WARNING):
        opened = open_backend(plugins(CPU, GPU), "gpu", fallback=["cpu"])
    assert (opened.backend.name, opened.reason_for_fallback) == ("gpu", None)
    assert not caplog.records


def test_an_unknown_name_gets_the_nearest_and_the_list():
    with pytest.raises(
        BackendError, match=r"no backend 'gpo'. Did you mean 'gpu'\? Known: cpu, gpu"
    ):
        open_backend(plugins(CPU, GPU), "gpo")


def test_a_misspelt_fallback_shows_even_when_it_is_not_needed():
    with pytest.raises(BackendError, match="no backend 'cpuu'"):
        open_backend(plugins(CPU, GPU), "gpu", fallback=["cpuu"])


def test_auto_is_no_fallback():
    with pytest.raises(BackendError, match="names no backend"):
        open_backend(plugins(CPU, GPU), "gpu", fallback=["auto"])


FAILED = PluginRecord("acme", "acme-npu", "1.2", "failed", "ImportError: libacme.so")
BLOCKED = PluginRecord("acme", "acme-npu", "1.2", "blocked", "named in `plugins.block`")


@pytest.mark.parametrize("record", [FAILED, BLOCKED])
def test_a_failed_plugin_matters_only_when_it_is_named(record):
    found = plugins(CPU, records=(record,))
    assert open_backend(found).backend.name == "cpu"
    with pytest.raises(PluginError) as caught:
        open_backend(found, "acme")
    assert "acme (acme-npu 1.2)" in str(caught.value)
    assert record.error in str(caught.value)
    assert open_backend(found, "acme", fallback=["cpu"]).backend.name == "cpu"


def test_an_unknown_name_mentions_plugins_that_failed():
    with pytest.raises(BackendError, match=r"acme-npu 1\.2.*libacme\.so"):
        open_backend(plugins(CPU, records=(FAILED,)), "acme-large")


def test_a_wrong_option_is_no_reason_to_fall_back():
    with pytest.raises(BackendError, match="no option 'bad'"):
        open_backend(plugins(CPU, GPU), "gpu", 0, {"bad": 1}, ["cpu"])


def test_a_probe_that_raises_is_a_reason():
    def raising() -> ProbeResult:
        raise OSError("bus error")

    broken = BackendSpec("gpu", 1, "", raising, Fake, 10)
    with pytest.raises(BackendUnavailableError, match="probe failed with OSError: bus error"):
        open_backend(plugins(CPU, broken), "gpu")
    assert open_backend(plugins(CPU, broken)).backend.name == "cpu"


class Sessions:
    """Stands for the engine's building: refuses on the named backends, remembers the rest."""

    def __init__(self, *refusing: str, error: str | None = None) -> None:
        self.refusing, self.error = refusing, error
        self.seen: list[Fake] = []

    def __call__(self, opened: Opened) -> Opened:
        self.seen.append(opened.backend)
        if opened.backend.name in self.refusing:
            raise PlacementError("12 nodes landed on the CPU.", backend=self.error)
        return opened


def test_a_placement_that_fails_falls_back_only_where_it_is_allowed():
    build = Sessions("gpu")
    with pytest.raises(PlacementError):
        open_with_fallback(plugins(CPU, GPU), build, "gpu")
    assert [b.is_closed for b in build.seen] == [True]

    build = Sessions("gpu")
    opened = open_with_fallback(plugins(CPU, GPU), build, "gpu", fallback=["cpu"])
    assert opened.backend.name == "cpu"
    assert "12 nodes landed on the CPU. Running on cpu instead" in opened.reason_for_fallback
    assert [b.is_closed for b in build.seen] == [True, False]


def test_auto_goes_on_to_the_next_best_and_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        opened = open_with_fallback(plugins(CPU, GPU), Sessions("gpu"))
    assert opened.backend.name == "cpu"
    assert "as the next best" in opened.reason_for_fallback
    assert "12 nodes" in caplog.text


def test_the_last_candidates_error_is_the_one_that_is_raised():
    build = Sessions("gpu", "cpu")
    with pytest.raises(PlacementError):
        open_with_fallback(plugins(CPU, GPU), build, "gpu", fallback=["cpu"])
    assert [b.is_closed for b in build.seen] == [True, True]


def test_nested_calls_put_an_error_down_to_the_backend_it_names():
    """Prefill on gpu, decode on cpu: the gpu's refusal must not replace the cpu."""
    found = plugins(CPU, GPU)
    used: list[tuple[str, str]] = []

    def build(prefill: Opened, decode: Opened) -> tuple[str, str]:
        used.append((prefill.backend.name, decode.backend.name))
        if prefill.backend.name == "gpu":
            raise PlacementError("astray", backend="gpu")
        return used[-1]

    def inner(prefill: Opened) -> tuple[str, str]:
        return open_with_fallback(found, lambda d: build(prefill, d), "cpu", fallback=["cpu"])

    assert open_with_fallback(found, inner, "gpu", fallback=["cpu"]) == ("cpu", "cpu")
    assert used == [("gpu", "cpu"), ("cpu", "cpu")]


def test_other_errors_close_the_backend_and_pass_through():
    seen: list[Fake] = []

    def build(opened: Opened) -> None:
        seen.append(opened.backend)
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        open_with_fallback(plugins(CPU, GPU), build, "gpu", fallback=["cpu"])
    assert [b.is_closed for b in seen] == [True]


def test_two_runtimes_are_refused_before_anything_is_opened(monkeypatch):
    two = (RuntimeDistribution("onnxruntime", "1.31"), RuntimeDistribution("onnxruntime-gpu", "1"))
    monkeypatch.setattr("twostroke.install.installed_runtimes", lambda path=None: two)
    with pytest.raises(InstallError, match="overwrite each other"):
        open_backend(plugins(CPU), "cpu")


def test_no_runtime_at_all_is_what_auto_reports(monkeypatch):
    monkeypatch.setattr("twostroke.install.installed_runtimes", lambda path=None: ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstallError, match="ONNX Runtime is not installed"):
        open_backend(plugins(NO_GPU))


def test_a_placement_reads_as_a_sentence():
    placement = Placement("X", types.MappingProxyType({"X": 3, "CPUExecutionProvider": 1}))
    assert placement.sentence() == "3 nodes on X, 1 nodes on CPUExecutionProvider"
