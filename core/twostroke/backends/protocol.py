"""What a backend is: the objects a plugin hands to the engine.

A plugin answers the hook `twostroke_backends` with `BackendSpec`s. `probe` says which devices
are there, or why none is; `open` makes a `Backend`, which makes sessions and device buffers.
Hooks run at start-up only: the token loop calls `Binding.run` and `Buffer.write`, plain methods.

The engine asks little of a session: it binds buffers to the graph's declared inputs and outputs
once, changes the small inputs in place, and runs. In graphs of the fused dialect past and present
of the KV cache are bound to the same buffer, so a session must write its present in place; those
of the standard dialect get buffers of their own for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from twostroke.types import Stroke

API_VERSION = 1
"""Raised when a plugin written for the previous protocol would no longer work."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A graph input or output as the graph declares it; symbolic dimensions are strings."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str  # numpy's name: "float32", "float16", "int64" …


@dataclass(frozen=True, slots=True)
class Device:
    """One piece of hardware that a backend can open.

    `prefill_chunk_tokens` is the backend's advice: the length of a prompt's pieces that it computes
    best; None: none.
    """

    index: int
    name: str
    kind: str  # "cpu", "gpu" or "npu"
    memory_bytes: int | None = None  # None where it cannot be read
    bandwidth_bytes_per_s: float | None = None
    dtypes: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    details: Mapping[str, str] = field(default_factory=dict)
    prefill_chunk_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Devices, or the reason (one sentence, with what to install) why there is none.

    `would_bring`: a sentence on what this machine would gain by it, where there is none.
    """

    devices: tuple[Device, ...] = ()
    reason: str = ""
    would_bring: str = ""

    @property
    def is_available(self) -> bool:
        """True where at least one device was found."""
        return bool(self.devices)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the nodes of a session really run, read back after it was made.

    `nodes` counts nodes by provider; `strays` names the operators that run elsewhere than asked.
    `brought` counts, by domain, those among the nodes that are no operators of ONNX Runtime's.
    """

    requested: str
    nodes: Mapping[str, int]
    strays: Mapping[str, int] = field(default_factory=dict)
    brought: Mapping[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """E.g. `825 nodes on CPUExecutionProvider (121 of them twostroke's own)`."""
        where = ", ".join(f"{count} nodes on {name}" for name, count in self.nodes.items())
        own = ", ".join(f"{count} of them {domain}'s own" for domain, count in self.brought.items())
        return f"{where} ({own})" if own else where


class Buffer(Protocol):
    """Memory on a backend's device with a shape and a dtype.

    The host reads and writes it as `storage_dtype(dtype)`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The current shape."""
        ...

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        ...

    def rows(self, start: int, count: int) -> Buffer:
        """A view of rows [start, start + count) of the first axis, sharing memory.

        Only called where the backend says `has_row_views`.
        """
        ...

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) into the buffer. Mutates the device memory."""
        ...

    def read(self) -> Array:
        """The contents as a host array of the buffer's shape; a view where the memory is host's.

        Valid until the next run that writes this buffer.
        """
        ...


@runtime_checkable
class ReshapableBuffer(Buffer, Protocol):
    """A buffer whose memory can be seen in other shapes. A backend need not have it.

    With it a KV cache that grows by concatenation is allocated once; without, anew for each run.
    """

    def reshaped(self, shape: tuple[int, ...]) -> Buffer:
        """A view of the first elements in the shape `shape`, sharing memory."""
        ...


@runtime_checkable
class GivesBack(Protocol):
    """A buffer, or a view of rows, whose memory the system can have back. A backend need not have
    it: what the KV cache once took then stays taken.
    """

    def give_back(self, start: int) -> bool:
        """Returns the memory behind the first `start` positions of axis 2, in each of axes 0 and 1.

        For buffers of [rows, kv_heads, capacity, head_dim]. What lay there is undefined
        afterwards; it can be written as before. The memory stays at its address, so bindings stay
        good. Not while a run uses these rows. Whole pages only. False: nothing can be returned.
        """
        ...


class Binding(Protocol):
    """Buffers tied to a session's inputs and outputs; made once, run many times."""

    def run(self) -> None:
        """Runs the graph on the bound buffers and waits. Mutates the bound outputs.

        Raises:
            EngineError: the run failed; the binding stays usable.
        """
        ...


class Session(Protocol):
    """One graph, loaded on a device."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The declared inputs by name."""
        ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The declared outputs by name."""
        ...

    @property
    def placement(self) -> Placement:
        """Where the nodes run."""
        ...

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> Binding:
        """Ties buffers to every declared input and output. Keeps references to the buffers."""
        ...

    def close(self) -> None:
        """Frees the session. Bindings made from it may not run any more."""
        ...


@runtime_checkable
class Backend(Protocol):
    """An open device: makes sessions and buffers."""

    @property
    def name(self) -> str:
        """The spec's name, e.g. `cpu`."""
        ...

    @property
    def device(self) -> Device:
        """The device that was opened."""
        ...

    @property
    def has_row_views(self) -> bool:
        """Whether `Buffer.rows` works; without it sequences decode one at a time."""
        ...

    @property
    def touches_lazily(self) -> bool:
        """Whether memory that was allocated but never written costs nothing (true on CPUs)."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """A buffer of zeros on the device, or in host memory that sessions can read directly.

        Small inputs and logits are asked for with `on_host`; the KV cache is not.

        Raises:
            OutOfMemoryError: with the bytes asked for and the bytes free.
        """
        ...

    def open_session(self, graph: Path, stroke: Stroke) -> Session:
        """Loads a graph and proves where it runs.

        Raises:
            PlacementError: nodes landed elsewhere than on this device.
            BundleError: the file cannot be loaded.
        """
        ...

    def close(self) -> None:
        """Frees the device. Sessions and buffers must be closed before."""
        ...


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a plugin registers: a name and two functions.

    `probe` never raises and imports nothing heavy before it is called. `open` takes a device
    from `probe` and the options of the YAML; it checks each option and names the allowed ones.
    `dialect` says which graphs of a bundle each stroke wants: "fused" for ONNX Runtime's own
    operators, "standard" for plain ONNX, which compilers take whole. `threads_option` is the name
    of the option that says how many threads an operator uses; `twostroke tune` tries it. With
    `shares_threads` its sessions run in ONNX Runtime's own threads, of which several models may
    share one pool: not those that set `threads_option` apart, nor `spinning` to false.
    """

    name: str
    api_version: int
    summary: str
    probe: Callable[[], ProbeResult]
    open: Callable[[Device, Mapping[str, Any]], Backend]
    priority: int = 0  # the highest usable one wins where the YAML says `backend: auto`
    dialect: Mapping[Stroke, str] = field(
        default_factory=lambda: {Stroke.PREFILL: "fused", Stroke.DECODE: "fused"}
    )
    threads_option: str | None = None
    shares_threads: bool = False


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """In which numpy dtype the host sees a buffer: uint16 holds the bits of a bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def dtype_bytes(dtype: str) -> int:
    """Bytes an element of `dtype` takes."""
    return int(storage_dtype(dtype).itemsize)
