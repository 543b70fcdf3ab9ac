"""The generic backend over plugin providers: packages, libraries, choice of device, options."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twostroke.backends import BackendSpec, ProbeResult
from twostroke.errors import BackendError, BackendUnavailableError
from twostroke_backends import plugin_ep, plugin_ep_library
from twostroke_backends.openvino_properties import chunk_tokens
from twostroke_backends.plugin_ep_devices import choose, device_facts
from twostroke_backends.plugin_ep_library import EpDevice, ProviderLibrary, open_library
from twostroke_backends.plugin_ep_providers import known_provider, provider_options

(SPEC,) = plugin_ep.twostroke_backends()
PACKAGE = """
def get_library_path():
    return {path!r}

def get_ep_names():
    return {names!r}
"""


def open_with(**options: Any) -> Any:
    (device,) = SPEC.probe().devices
    return SPEC.open(device, options)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes an importable package and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def write(source: str, name: str = "onnxruntime_ep_mine") -> str:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


class FakeRuntime:
    """The part of onnxruntime that registers libraries, with devices of our own."""

    __version__ = "1.99"
    OrtDeviceMemoryType = SimpleNamespace(DEFAULT="default")

    def __init__(self, *devices: SimpleNamespace) -> None:
        self.brings = devices
        self.names: dict[str, str] = {"taken": "elsewhere"}
        self.most_at_once = 0

    def get_ep_devices(self) -> list[SimpleNamespace]:
        own = [device for _ in self.names for device in self.brings]
        return [ep_device("CPUExecutionProvider"), *own[len(self.brings) :]]

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if name in self.names:
            raise RuntimeError(f"EP library is already registered under {name}")
        if "broken" in path:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Failed to load library")
        self.names[name] = path
        self.most_at_once = max(self.most_at_once, len(self.names) - 1)

    def unregister_execution_provider_library(self, name: str) -> None:
        del self.names[name]


def ep_device(name: str, kind: str = "CPU", **metadata: str) -> SimpleNamespace:
    hardware = SimpleNamespace(
        type=f"OrtHardwareDeviceType.{kind}", vendor="Acme", metadata={"Description": f"a {kind}"}
    )
    return SimpleNamespace(
        ep_name=name,
        ep_vendor="Acme",
        ep_metadata=metadata,
        device=hardware,
        memory_info=lambda kind: None,
    )


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime(
        ep_device("Acme", "CPU"),
        ep_device("Acme", "GPU", number="0", memory_bytes="4096"),
        ep_device("Acme", "GPU", number="1"),
        ep_device("Acme.AUTO", "GPU", number="1"),
    )
    monkeypatch.setattr(plugin_ep_library, "onnxruntime", lambda: fake)
    monkeypatch.setattr(plugin_ep, "onnxruntime", lambda: fake)
    return fake


@pytest.fixture
def acme(package, tmp_path: Path) -> str:
    (tmp_path / "libacme.so").write_bytes(b"")
    return package(PACKAGE.format(path=str(tmp_path / "libacme.so"), names=["Acme"]))


def test_the_probe_stands_for_what_the_options_will_name(package):
    package("raise RuntimeError('never imported by a probe')")
    (device,) = SPEC.probe().devices
    assert "onnxruntime_ep_mine" in device.details["packages"]


def test_without_a_runtime_the_probe_says_what_to_install(monkeypatch):
    from twostroke.errors import InstallError

    def none() -> None:
        raise InstallError("ONNX Runtime is not installed.")

    monkeypatch.setattr(plugin_ep, "check_install", none)
    assert SPEC.probe() == ProbeResult(reason="ONNX Runtime is not installed.")


@pytest.mark.parametrize("options", [{}, {"package": "a", "library": "b"}])
def test_a_package_or_a_library_must_be_named(options, package):
    package("")
    with pytest.raises(BackendError, match=r"needs the option `package`.*onnxruntime_ep_mine"):
        open_with(**options)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, r"is not installed.*pip install onnxruntime-ep-mine"),
        ("import no_such_module", "needs no_such_module, which is not installed"),
        ("raise OSError('torn')", "cannot be imported: torn"),
        ("", r"no get_library_path\(\)"),
        ("def get_library_path(): raise FileNotFoundError('gone')\nget_ep_names = list", "gone"),
        (PACKAGE.format(path="/no/lib.so", names=[]), r"/no/lib\.so does not exist"),
    ],
)
def test_a_package_that_brings_no_provider_is_told_why(package, source, words):
    if source is not None:
        package(source)
    with pytest.raises(BackendUnavailableError, match=words) as caught:
        open_with(package="onnxruntime_ep_mine")
    assert caught.value.backend == "plugin_ep"


def test_a_library_that_is_none_is_refused_by_the_runtime(tmp_path: Path):
    library = tmp_path / "no_library.so"
    library.write_bytes(b"no library")
    with pytest.raises(BackendUnavailableError, match=r"refuses the provider's library no_library"):
        open_with(library=str(library))


def test_several_devices_need_a_choice_and_are_listed(acme, runtime):
    words = r"3 devices: Acme on cpu a CPU.*gpu a GPU.*number=0.*number=1.*`metadata`"
    with pytest.raises(BackendError, match=words):
        open_with(package=acme)
    with pytest.raises(BackendError, match="2 devices with hardware gpu"):
        open_with(package=acme, hardware="gpu")
    assert list(runtime.names) == ["taken"]


def test_a_device_is_chosen_by_hardware_and_metadata(acme, runtime):
    backend = open_with(package=acme, hardware="gpu", metadata={"number": 0})
    assert (backend.device.kind, backend.device.name) == ("gpu", "a GPU")
    assert backend.device.memory_bytes == 4096
    backend.close()
    assert list(runtime.names) == ["taken"]


def test_a_provider_that_the_package_does_not_name_is_chosen_by_its_name_only(acme, runtime):
    open_with(package=acme, provider="Acme.AUTO").close()
    with pytest.raises(BackendError, match=r"provider Acme\.AUT.*Did you mean 'Acme\.AUTO'.*Found"):
        open_with(package=acme, provider="Acme.AUT")


def test_a_registration_is_shared_and_undone_by_the_last(acme, runtime):
    backends = [open_with(package=acme, hardware="cpu") for _ in range(3)]
    assert list(runtime.names) == ["taken", "Acme"]
    for backend in backends:
        assert "Acme" in runtime.names
        backend.close()
        backend.close()
    assert list(runtime.names) == ["taken"]


def test_threads_that_open_at_once_register_once(acme, runtime):
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        for _ in range(5):
            open_with(package=acme, hardware="cpu").close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime.most_at_once == 1
    assert list(runtime.names) == ["taken"]


def test_a_name_that_other_code_has_taken_is_varied(acme, runtime):
    runtime.names["Acme"] = "somebody else's"
    backend = open_with(package=acme, hardware="cpu")
    assert list(runtime.names) == ["taken", "Acme", "Acme+"]
    backend.close()
    assert list(runtime.names) == ["taken", "Acme"]


def test_a_library_by_itself_has_all_its_devices(runtime, tmp_path: Path):
    path = tmp_path / "libacme.so"
    path.write_bytes(b"")
    library = open_library(path, "plugin_ep")
    assert [device.provider for device in library.devices] == [*["Acme"] * 3, "Acme.AUTO"]
    assert list(runtime.names) == ["taken", "libacme"]
    library.release()


def device(provider: str, hardware: str = "gpu", **metadata: str) -> EpDevice:
    return EpDevice(provider, "Acme", hardware, metadata, None)


def test_options_of_an_unknown_provider_are_handed_on_and_said_so(caplog):
    given = {"speed": "high", "level": 3, "fast": True}
    with caplog.at_level(logging.WARNING):
        options = provider_options("plugin_ep", device("Acme"), given)
    assert options == {"speed": "high", "level": "3", "fast": "1"}
    assert "speed, level, fast go to Acme unchecked" in caplog.text
    with pytest.raises(BackendError, match=r"option 'shape' must be a text.*not \[1, 2\]"):
        provider_options("plugin_ep", device("Acme"), {"shape": [1, 2]})
    with pytest.raises(BackendError, match="nan"):
        provider_options("plugin_ep", device("Acme"), {"level": float("nan")})


@pytest.mark.parametrize(
    ("provider", "given", "options"),
    [
        (
            "WebGpuExecutionProvider",
            {"validation_mode": "full", "enable_matmul_fp32_accumulation": True},
            {
                "ep.webgpuexecutionprovider.validationMode": "full",
                "ep.webgpuexecutionprovider.enableMatmulFp32Accumulation": "1",
            },
        ),
        (
            "NvTensorRTRTXExecutionProvider",
            {"enable_cuda_graph": True, "nv_max_workspace_size": 5},
            {"enable_cuda_graph": "1", "nv_max_workspace_size": "5"},
        ),
        (
            "OpenVINOExecutionProvider.AUTO",
            {"cache": False, "inference_precision": "f16"},
            {
                "load_config": '{"GPU.1": {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", '
                '"INFERENCE_PRECISION_HINT": "f16"}}'
            },
        ),
    ],
)
def test_options_of_known_providers_come_in_their_words(provider, given, options):
    found = device(provider, ov_device="GPU.1")
    assert provider_options("plugin_ep", found, given) == options
    with pytest.raises(BackendError, match=r"no option 'bogus'.*the allowed ones are"):
        provider_options("plugin_ep", found, {"bogus": 1})


def test_a_known_provider_says_which_dialect_and_chunk_it_takes_best():
    openvino = known_provider("OpenVINOExecutionProvider")
    assert openvino is not None
    assert (openvino.dialect, openvino.prefill_chunk_tokens) == ("standard", chunk_tokens())
    assert known_provider("Acme") is None


def test_a_device_that_tells_nothing_still_has_a_name():
    library = ProviderLibrary(Path("libacme.so"), (device("Acme"),))
    found = choose(library, "plugin_ep")
    facts = device_facts(found, 0)
    assert (facts.name, facts.kind, facts.memory_bytes) == ("Acme gpu", "gpu", None)
    assert facts.dtypes == frozenset()


def test_the_spec_is_a_strangers():
    assert isinstance(SPEC, BackendSpec)
    assert SPEC.name == "plugin_ep"
