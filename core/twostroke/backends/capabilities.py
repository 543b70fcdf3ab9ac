"""What a backend may have beside the protocol; each is asked for with `isinstance`.

Without one of them everything works, only slower or less exactly planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from twostroke.backends.protocol import Array, Backend, Binding, Buffer

HOST_MEMORY = "host"

CHOSEN_BY_OPTIONS = "chosen by options"
"""Among the `capabilities` of a `Device` that a probe answers: it stands for whichever the options
name, and opening it without any is refused. The open backend's device is the real one."""

READS_FASTER = "reads prompts faster than the processor's own backend"
"""Among the `capabilities` of a `Device`: where `backend: auto` decodes on the processor, it has
prompts read on this device."""


@runtime_checkable
class InterruptibleBinding(Binding, Protocol):
    """A binding whose run another thread can end. A backend need not have it.

    Without it a prompt that was given up is read to the end of its chunk.
    """

    def interrupt(self) -> None:
        """Ends the run that is in progress, which then raises EngineError; soon, not at once.

        Does nothing where none is: in particular the next run must not be hurt by an interruption
        that came too late for the one before.
        """
        ...


@runtime_checkable
class PacksWeights(Protocol):
    """A backend whose sessions keep the weights of products in a layout of their own.

    A backend need not say so; the memory plan then takes each session to load its own copy.
    """

    @property
    def shares_packed_weights(self) -> bool:
        """Whether sessions over the same weights keep them once."""
        ...


@runtime_checkable
class SharesWeights(Protocol):
    """A backend that says whether its sessions read equal weights from one place on the device.

    A backend need not say so; the memory plan then counts a copy for each session.
    """

    @property
    def shares_weights(self) -> bool:
        """Whether weights of two graphs that lie in one file are loaded once."""
        ...


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What sessions keep of the process's memory beside their own weights and the KV cache.

    code_bytes: the runtime's own, once a backend; maps_weights: the bundle's file stays mapped
    behind each session's copy of its weights; row_copies: how many copies of the longest row it
    ever ran a session whose cache grows holds on to.
    """

    code_bytes: int = 0
    maps_weights: bool = False
    row_copies: float = 0.0


@runtime_checkable
class TellsSessionMemory(Protocol):
    """A backend that knows what its sessions keep. It need not; nothing is then planned for it."""

    @property
    def session_memory(self) -> SessionMemory:
        """Of sessions on this device."""
        ...


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that nobody has taken, and who says so, in a few words."""

    num_bytes: int
    source: str


@runtime_checkable
class TellsFreeMemory(Protocol):
    """A backend that knows what is free on its device right now. It need not; the memory plan then
    takes all that the device has to be free.
    """

    def free_memory(self) -> FreeMemory:
        """What is free, as it is now."""
        ...


@runtime_checkable
class PacksBlocks(Protocol):
    """A backend that packs quantised products by itself, and says what that takes.

    Without it the memory plan takes them to be packed as ONNX Runtime does.
    """

    @property
    def packed_block_bytes(self) -> int:
        """Bytes of a block of weights beside its values, for which ONNX Runtime needs 8."""
        ...


@runtime_checkable
class SharesMemory(Protocol):
    """A backend that says where its buffers lie. It need not: its KV cache is then its own.

    Two backends that answer the same can bind each other's buffers, so that prefill on one and
    decode on the other work on one KV cache where their graphs lay it out alike.
    """

    @property
    def memory_space(self) -> str:
        """`host` for host memory that `allocate` gives, else e.g. `cuda:0`."""
        ...


@runtime_checkable
class ReachesFront(Protocol):
    """A buffer of [rows, kv_heads, capacity, head_dim] whose first positions the host can reach
    without the others. For memory that is not the host's; a backend need not have it: whole
    buffers are then copied through host memory.
    """

    def read_front(self, num_positions: int) -> Array:
        """A copy of the first positions of axis 2, [rows, kv_heads, num_positions, head_dim]."""
        ...

    def write_front(self, values: Array) -> None:
        """Writes [rows, kv_heads, n, head_dim] to the first n positions. Mutates the memory."""
        ...

    def copy_front(self, source: Buffer, num_positions: int) -> bool:
        """Copies the first positions of a buffer that differs in capacity at most, and waits.

        Mutates the memory. False: `source` is out of this device's reach, nothing was done.
        """
        ...


class Staged(Protocol):
    """Small tensors of a run that cross between host and device together."""

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """What is bound, by name; they stay where they are."""
        ...

    @property
    def values(self) -> Mapping[str, Array]:
        """The host's side of each."""
        ...

    def send(self) -> None:
        """Makes `values` what the next run reads. Mutates the buffers."""
        ...

    def fetch(self) -> None:
        """Makes what the last run wrote the `values`, which may be other arrays then."""
        ...


@runtime_checkable
class StagesTensors(Protocol):
    """A backend that takes a step's small tensors to its device in one copy, and back in one.

    A backend need not have it: each is then a buffer in host memory of its own.
    """

    def stage(self, tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Staged:
        """Room for tensors of these shapes and dtypes, zeros.

        Raises:
            OutOfMemoryError: the device refuses the bytes.
        """
        ...


@runtime_checkable
class ReplaysRuns(Protocol):
    """A session that records the first run of a binding and replays it from then on.

    Addresses and shapes are then those of that run, and so is `total_sequence_length`, which
    kernels read on the host: it is fed the room of the rows, the most it can become. A session need
    not have it.
    """

    @property
    def replays_runs(self) -> bool:
        """Whether runs are recorded; may become False where recording fails."""
        ...


@runtime_checkable
class Reports(Protocol):
    """A backend with more to say on where it stands. It need not."""

    def report(self) -> Mapping[str, str | int | bool | None]:
        """Names and values for `/health`, beside those that every backend has."""
        ...


@runtime_checkable
class LayeredBackend(Protocol):
    """A backend whose layers live on different devices; see `twostroke.backends.split`."""

    def of_layer(self, layer: int) -> Backend:
        """The backend that has a layer's KV cache."""
        ...
