"""The CUDA backend up to the driver: host memory plays the GPU's, the CPU provider its kernels.

ONNX Runtime does not record runs there, so what it would replay is checked instead: a run under a
number must have the addresses and the host's values of the first run under that number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import IOBinding

from twostroke.backends import Device
from twostroke.backends.ort import CPU_PROVIDER
from twostroke.testing.host_as_device import HostAsDevice
from twostroke_backends import cuda

GPU = Device(0, "host memory", "gpu", memory_bytes=2**30)


class HostGpu(HostAsDevice):
    """As `CudaMemory`."""

    stream = 4711

    def free_bytes(self) -> int:
        return 2**30 - self.taken_bytes

    def release(self) -> None:
        pass


class HostDriver:
    def __init__(self) -> None:
        self.memories: list[HostGpu] = []

    def memory(self, index: int) -> HostGpu:
        self.memories.append(HostGpu())
        return self.memories[-1]


@dataclass
class Replays:
    """What was run under which number (of which session), and what must never change."""

    seen: dict[tuple[int, int], Any] = field(default_factory=dict)
    num_runs: int = 0
    num_plain_runs: int = 0
    num_to_fail: int = 0  # so many recordings will fail


class NotingBinding(IOBinding):
    """Remembers addresses by name; what is on the host also by value."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.addresses: dict[str, int] = {}
        self.on_host: dict[str, Any] = {}
        self.host_outputs: list[str] = []

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        self.addresses[name] = buffer_ptr
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)

    def bind_output(self, name, *place):
        self.addresses[name] = place[-1]
        super().bind_output(name, *place)

    def bind_ortvalue_input(self, name, value):
        self.addresses[name] = value.data_ptr()
        self.on_host[name] = value
        super().bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name, value):
        self.host_outputs.append(name)
        super().bind_ortvalue_output(name, value)

    def snapshot(self) -> Any:
        return dict(self.addresses), {n: v.numpy().tolist() for n, v in self.on_host.items()}


def checked_session(replays: Replays) -> type:
    class CheckedSession(onnxruntime.InferenceSession):
        def __init__(self, path, options=None, *, providers, **others):
            (provider,) = providers
            provider_options = provider[1] if isinstance(provider, tuple) else {}
            self.records = provider_options.get("enable_cuda_graph") == "1"
            super().__init__(path, options, providers=[CPU_PROVIDER], **others)

        def io_binding(self):
            return NotingBinding(self)

        def run_with_iobinding(self, iobinding, run_options=None):
            if self.records:
                self.check(iobinding, int(run_options.get_run_config_entry("gpu_graph_id")))
            super().run_with_iobinding(iobinding, run_options)

        def check(self, iobinding, number):
            assert not iobinding.host_outputs, "a run that is replayed copies nothing to the host"
            replays.num_runs += 1
            if number == -1:
                replays.num_plain_runs += 1
                return
            if replays.num_to_fail:
                replays.num_to_fail -= 1
                raise RuntimeError("operation not permitted when stream is capturing")
            key = (id(self), number)
            assert replays.seen.setdefault(key, iobinding.snapshot()) == iobinding.snapshot()

    return CheckedSession


def open_on_host(monkeypatch: Any, **options: Any) -> tuple[cuda.CudaBackend, HostGpu, Replays]:
    """A backend, its memory, and what is noted of its runs."""
    replays, driver = Replays(), HostDriver()
    monkeypatch.setattr(onnxruntime, "InferenceSession", checked_session(replays))
    monkeypatch.setattr(cuda, "PROVIDER", CPU_PROVIDER)
    backend = cuda.CudaBackend(GPU, options, driver)
    return backend, driver.memories[0], replays
