"""NVIDIA GPUs, through ONNX Runtime's CUDAExecutionProvider.

The KV cache lives on the device and is bound by address; token ids, lengths and logits stay in
host memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import BackendSpec, Buffer, Device, ProbeResult, hookimpl
from twostroke.backends.ort import (
    Option,
    OrtSession,
    allocate_host,
    allocate_on_device,
    check_options,
    load_session,
    onnxruntime,
    prove_placement,
    with_reduced_logits,
)
from twostroke.errors import BackendUnavailableError, PlacementError, TwostrokeError
from twostroke.types import Stroke
from twostroke_backends import cuda_libraries
from twostroke_backends.cuda_driver import CudaDeviceFacts, CudaDriver, load_library
from twostroke_backends.nvml import free_bytes

NAME = "cuda"
PROVIDER = "CUDAExecutionProvider"
OPTIONS = (
    Option("memory_limit_bytes", int, "most that a session's arena may take", low=1),
    Option(
        "arena_growth",
        str,
        "how a session's arena grows",
        "same_as_requested",
        choices=("same_as_requested", "next_power_of_two"),
    ),
    Option("reduce_logits", bool, "choose tokens from what the GPU makes of a step's logits", True),
    Option("tf32", bool, "lower precision for fp32 matrix products", False),
)
_GROWTH = {"same_as_requested": "kSameAsRequested", "next_power_of_two": "kNextPowerOfTwo"}
_ATTENTION = "GroupQueryAttention"
_KV_DTYPES = frozenset({"float16", "bfloat16"})  # what its CUDA kernel is registered for
_OLDEST_BFLOAT16 = (8, 0)


def probe() -> ProbeResult:
    """The GPUs, or the one library or device that is missing. Makes no context on a device."""
    try:
        driver = CudaDriver(load_library())
        fault = cuda_libraries.missing_provider() or _old_driver(driver)
        fault = fault or cuda_libraries.missing_library()
        if fault is not None:
            return ProbeResult(reason=fault)
        devices = tuple(_device(facts) for facts in driver.devices())
    except TwostrokeError as error:
        return ProbeResult(reason=str(error))
    except Exception as error:  # a probe never raises, whatever a driver does
        return ProbeResult(reason=f"asking the NVIDIA driver failed: {error}")
    if not devices:
        return ProbeResult(
            reason="the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES must not hide it."
        )
    return ProbeResult(devices)


def _old_driver(driver: CudaDriver) -> str | None:
    built, served = cuda_libraries.built_for(), driver.cuda_version()
    if built is None or served[0] >= built[0]:
        return None
    return (
        f"the NVIDIA driver serves CUDA {served[0]}.{served[1]}, but ONNX Runtime was built for "
        f"CUDA {built[0]}.{built[1]}: install a newer NVIDIA driver."
    )


def _device(facts: CudaDeviceFacts) -> Device:
    dtypes = (
        {"float16", "bfloat16"} if facts.compute_capability >= _OLDEST_BFLOAT16 else {"float16"}
    )
    details = {"compute_capability": ".".join(map(str, facts.compute_capability))}
    free = free_bytes(facts.pci_bus_id)
    if free is not None:
        details["free_bytes"] = str(free)
    return Device(
        index=facts.index,
        name=facts.name,
        kind="gpu",
        memory_bytes=facts.total_bytes,
        bandwidth_bytes_per_s=facts.bandwidth_bytes_per_s,
        dtypes=frozenset(dtypes),
        details=details,
    )


class CudaBackend:
    """Sessions on one GPU, with the KV cache in its memory."""

    name = NAME
    has_row_views = True
    touches_lazily = False

    def __init__(
        self, device: Device, options: Mapping[str, Any], driver: CudaDriver | None = None
    ) -> None:
        """Takes the device's primary context. `driver`: None loads the system's.

        Raises:
            BackendError: an unknown option or a bad value.
            BackendUnavailableError: the driver refuses.
        """
        self.device = device
        self.options = check_options(NAME, options, OPTIONS)
        self._memory = (driver or CudaDriver(load_library())).memory(device.index)

    @property
    def memory_space(self) -> str:
        """Where its buffers lie; see `SharesMemory`."""
        return f"cuda:{self.device.index}"

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros on the GPU, or in host memory that sessions copy from and to.

        Raises:
            OutOfMemoryError: with the bytes asked for and the bytes free.
        """
        if on_host:
            return allocate_host(shape, dtype)
        return allocate_on_device(self._memory, shape, dtype)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph and proves that the GPU has it.

        Raises:
            PlacementError: nodes landed on the CPU; where the bundle's dtype is the cause, the
                message says what to export instead.
            BundleError: the graph cannot be loaded.
        """
        return self._open_session(graph, None)

    @property
    def reduces_logits(self) -> bool:
        """Whether decode leaves its logits on the GPU; see `ReducesLogits`."""
        return bool(self.options["reduce_logits"])

    def open_reducing_session(self, graph: Path) -> OrtSession:
        """As `open_session`, with nodes that reduce the logits; see `ReducesLogits`."""
        return self._open_session(graph, with_reduced_logits(graph) if graph.is_file() else None)

    def _open_session(self, graph: Path, content: bytes | None) -> OrtSession:
        session = load_session(
            graph,
            PROVIDER,
            self.provider_options(),
            _session_options(),
            on_host=False,
            content=content,
        )
        try:
            refuse_kv_dtype(session, graph.name)
            prove_placement(
                session.placement, graph.name, NAME, "`twostroke doctor` checks the CUDA libraries."
            )
        except PlacementError:
            session.close()
            raise
        return session

    def provider_options(self) -> dict[str, str]:
        """The options in ONNX Runtime's words."""
        options = {
            "device_id": str(self.device.index),
            "arena_extend_strategy": _GROWTH[self.options["arena_growth"]],
            "use_tf32": "1" if self.options["tf32"] else "0",
        }
        if self.options["memory_limit_bytes"] is not None:
            options["gpu_mem_limit"] = str(self.options["memory_limit_bytes"])
        return options

    def close(self) -> None:
        """Gives the device's context back."""
        self._memory.release()


def refuse_kv_dtype(session: OrtSession, graph: str) -> None:
    """Says plainly that attention left the GPU because of the KV cache's dtype.

    Raises:
        PlacementError: names the dtype and what to export instead.
    """
    found = {s.dtype for n, s in session.inputs.items() if n.startswith("past_key_values.")}
    odd = sorted(found - _KV_DTYPES)
    if odd and _ATTENTION in session.placement.strays:
        raise PlacementError(
            f"{graph} keeps its KV cache in {odd[0]}, and {_ATTENTION} runs on CUDA in float16 "
            f"only: export the model again with `--precision fp16`.",
            backend=NAME,
        )


def _session_options() -> Any:
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1  # only shape arithmetic stays on the CPU
    return options


def _open(device: Device, options: Mapping[str, Any]) -> CudaBackend:
    fault = cuda_libraries.missing_provider() or cuda_libraries.missing_library()
    if fault is not None:
        raise BackendUnavailableError(
            f"The backend {NAME!r} cannot be used here: {fault}", backend=NAME
        )
    return CudaBackend(device, options)


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """NVIDIA GPUs; preferred to the CPU where there is one."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="NVIDIA GPUs, through ONNX Runtime's CUDA provider",
            probe=probe,
            open=_open,
            priority=100,
        )
    ]
