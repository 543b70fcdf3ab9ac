"""NVIDIA GPUs, through ONNX Runtime's CUDAExecutionProvider.

The KV cache, the weights and a step's logits live on the device and are bound by address. Token ids
and lengths go there in one copy from pinned memory; what is made of the logits comes back in one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import BackendSpec, Buffer, Device, hookimpl
from twostroke.backends.capabilities import FreeMemory, Staged
from twostroke.backends.ort import (
    DeviceStaged,
    Option,
    OrtSession,
    SharedWeights,
    allocate_host,
    allocate_on_device,
    check_options,
    load_session,
    onnxruntime,
    prove_placement,
    with_reduced_logits,
)
from twostroke.bundle.contract import ATTENTION_MASK, TOTAL_SEQUENCE_LENGTH
from twostroke.bundle.graph_header import GraphHeader, read_header
from twostroke.errors import BackendUnavailableError, BundleError, PlacementError
from twostroke.types import Stroke
from twostroke_backends import cuda_libraries
from twostroke_backends.cuda_driver import CudaDriver, load_library
from twostroke_backends.cuda_precision import refuse_kv_dtype
from twostroke_backends.cuda_probe import probe
from twostroke_backends.cuda_session import GraphBooks, RecordingSession
from twostroke_backends.nvml import memory_of

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
    Option(
        "cuda_graphs",
        str,
        "record decode steps and replay them; auto goes on without where that fails",
        "auto",
        choices=("auto", "on", "off"),
    ),
    Option("share_weights", bool, "keep weights that both graphs read once on the GPU", True),
    Option("tf32", bool, "lower precision for fp32 matrix products", False),
)
_READ_ON_HOST = frozenset({TOTAL_SEQUENCE_LENGTH})  # by the kernel of GroupQueryAttention
_GROWTH = {"same_as_requested": "kSameAsRequested", "next_power_of_two": "kNextPowerOfTwo"}


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
        self._weights = SharedWeights(self._memory)
        self._books = GraphBooks(self.options["cuda_graphs"])
        self._memory_source: str | None = None  # asked anew for each plan only

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

    def stage(self, tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Staged:
        """Room for a step's small tensors; see `StagesTensors`."""
        return DeviceStaged(self._memory, tensors, on_host=_READ_ON_HOST)

    @property
    def shares_weights(self) -> bool:
        """Whether both graphs read one copy of their weights; see `SharesWeights`."""
        return bool(self.options["share_weights"])

    def free_memory(self) -> FreeMemory:
        """What is free right now, from NVML or else from the driver; see `TellsFreeMemory`."""
        details = self.device.details
        memory = memory_of(details.get("pci_bus_id", ""), details.get("uuid", ""))
        told = FreeMemory(memory.free_bytes, memory.source) if memory is not None else None
        told = told or FreeMemory(self._memory.free_bytes(), "the CUDA driver")
        self._memory_source = told.source
        return told

    def report(self) -> Mapping[str, str | int | bool | None]:
        """How steps run and what sessions share; see `Reports`."""
        books = self._books
        return {
            "cuda_graphs": books.mode,
            "records_runs": books.is_on,
            "why_not": books.reason,
            "num_recorded": books.num_recorded,
            "num_replayed": books.num_replayed,
            "shared_weights_bytes": self._weights.num_bytes,
            "memory_told_by": self._memory_source,
        }

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph and proves that the GPU has it.

        Raises:
            PlacementError: nodes landed on the CPU; where the bundle's dtype is the cause, the
                message says what to export instead.
            BundleError: the graph cannot be loaded.
        """
        return self._open_session(graph, None, may_record=False)

    def open_decode_session(self, graph: Path) -> OrtSession:
        """As `open_session`, reduced and recorded as the options say; see `OpensDecode`."""
        reduces = self.options["reduce_logits"] and graph.is_file()
        content = with_reduced_logits(graph) if reduces else None
        return self._open_session(graph, content, may_record=True)

    def _open_session(self, graph: Path, content: bytes | None, *, may_record: bool) -> OrtSession:
        header = read_header(graph) if graph.is_file() else GraphHeader()
        records = may_record and self._can_record(header)
        try:
            session = self._load(graph, content, records=records)
        except BundleError as fault:
            if not records or self.options["cuda_graphs"] == "on":
                raise
            session = self._load(graph, content, records=False)
            self._books.give_up(f"the session was refused with them ({fault})")
        try:
            refuse_kv_dtype(session, graph.name, header)
            prove_placement(
                session.placement, graph.name, NAME, "`twostroke doctor` checks the CUDA libraries."
            )
        except PlacementError:
            session.close()
            raise
        return session

    def _can_record(self, header: GraphHeader) -> bool:
        """Whether a decode graph's runs have fixed shapes: a mask grows with each step."""
        if self.options["cuda_graphs"] == "off" or self._books.has_failed:
            return False
        return TOTAL_SEQUENCE_LENGTH in header.inputs and ATTENTION_MASK not in header.inputs

    def _load(self, graph: Path, content: bytes | None, *, records: bool) -> OrtSession:
        options = _session_options()
        is_shared = self.shares_weights and graph.is_file()
        used = self._weights.give(graph, options) if is_shared else ()
        provider_options = self.provider_options()
        if records:
            provider_options["enable_cuda_graph"] = "1"
        session = load_session(
            graph,
            PROVIDER,
            provider_options,
            options,
            on_host=False,
            content=content,
            kind=functools.partial(RecordingSession, self._books) if records else None,
        )
        session.keep(used)
        return session

    def provider_options(self) -> dict[str, str]:
        """The options in ONNX Runtime's words."""
        options = {
            "device_id": str(self.device.index),
            "arena_extend_strategy": _GROWTH[self.options["arena_growth"]],
            "use_tf32": "1" if self.options["tf32"] else "0",
            "has_user_compute_stream": "1",
            "user_compute_stream": str(self._memory.stream),
        }
        if self.options["memory_limit_bytes"] is not None:
            options["gpu_mem_limit"] = str(self.options["memory_limit_bytes"])
        return options

    def close(self) -> None:
        """Gives the device's context back."""
        self._memory.release()


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
