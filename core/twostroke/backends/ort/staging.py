"""The small tensors of a run in one block on the device and one block of host memory.

The block on the device keeps its address, so bindings and recorded runs stay good, and a step costs
one copy however many tensors there are. Tensors that kernels read on the host stay there.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from twostroke.backends.ort.buffers import HostBuffer, numpy_dtype
from twostroke.backends.ort.device_buffers import DeviceBuffer, DeviceMemory, allocate_on_device
from twostroke.backends.protocol import Array, Buffer

_ALIGNMENT_BYTES = 256


class StagingMemory(DeviceMemory, Protocol):
    """A device whose copies can be queued before the work of its sessions."""

    def allocate_pinned(self, num_bytes: int) -> int:
        """The address of host memory that the device copies from by itself. Raises
        OutOfMemoryError.
        """
        ...

    def free_pinned(self, address: int) -> None:
        """Gives it back; never raises."""
        ...

    def send(self, address: int, source: int, num_bytes: int) -> None:
        """Queues a copy from pinned memory to the device, before what sessions run from now on."""
        ...

    def fetch(self, target: int, address: int, num_bytes: int) -> None:
        """Copies to pinned memory what sessions have written so far, and waits."""
        ...


class HostRead(HostBuffer):
    """Host memory that kernels of a device's session read where it is, when they are launched."""

    __slots__ = ()


class _Pinned:
    """Pinned memory that is given back with its last array."""

    __slots__ = ("__weakref__", "address", "num_bytes")

    def __init__(self, memory: StagingMemory, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = memory.allocate_pinned(num_bytes)
        weakref.finalize(self, memory.free_pinned, self.address).atexit = False

    @property
    def __array_interface__(self) -> dict[str, object]:
        """How numpy sees the memory; arrays made of it keep it alive."""
        return {
            "shape": (self.num_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }


class DeviceStaged:
    """Room for tensors, by name shape and dtype, on a device; see `Staged`.

    `on_host` names those that kernels read on the host.
    """

    def __init__(
        self,
        memory: StagingMemory,
        tensors: Mapping[str, tuple[tuple[int, ...], str]],
        on_host: Collection[str] = (),
    ) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, Array] = {}
        self._memory = memory
        offsets, end = {}, 0
        for name, (shape, dtype) in tensors.items():
            if name in on_host:
                host = HostRead(np.zeros(shape, numpy_dtype(dtype)))
                self.buffers[name], self.values[name] = host, host.array
                continue
            offsets[name] = end
            num_bytes = math.prod(shape) * numpy_dtype(dtype).itemsize
            end += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._num_bytes = max(end, _ALIGNMENT_BYTES)
        self._pinned = _Pinned(memory, self._num_bytes)
        self._block = allocate_on_device(memory, (self._num_bytes,), "uint8")
        everything = np.asarray(self._pinned)  # [num_bytes] uint8
        everything[...] = 0
        for name, offset in offsets.items():
            shape, dtype = tensors[name]
            num_bytes = math.prod(shape) * numpy_dtype(dtype).itemsize
            part = everything[offset : offset + num_bytes]
            self.values[name] = part.view(numpy_dtype(dtype)).reshape(shape)
            self.buffers[name] = self._view(offset, shape, dtype)

    def send(self) -> None:
        """One copy to the device, queued before the next run."""
        self._memory.send(self._block.address, self._pinned.address, self._num_bytes)

    def fetch(self) -> None:
        """One copy to the host, behind the last run."""
        self._memory.fetch(self._pinned.address, self._block.address, self._num_bytes)

    def _view(self, offset: int, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
        return self._block.typed(offset, shape, dtype)
