"""Buffers in a device's own memory that has addresses.

Rows are views, and the cache is allocated without the runtime's arena. Devices whose memory is an
opaque handle have `handle_buffers`.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from twostroke.backends.ort.buffers import check_fits, check_like, numpy_dtype
from twostroke.backends.protocol import Array, Buffer, dtype_bytes, storage_dtype
from twostroke.errors import BackendError

_ONNX_BFLOAT16 = 16  # of TensorProto.DataType


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of bytes at equal distances: at an address on the device, or in a host array."""

    memory: int | Array
    pitch_bytes: int  # from the start of one block to that of the next


class DeviceMemory(Protocol):
    """The few functions a device's driver must offer. All of them return when the work is done."""

    @property
    def ort_device(self) -> tuple[str, int]:
        """ONNX Runtime's name of the device type and the device's number, e.g. ("cuda", 0)."""
        ...

    def allocate(self, num_bytes: int) -> int:
        """The address of new memory, filled with zeros. Raises OutOfMemoryError."""
        ...

    def free(self, address: int) -> None:
        """Gives memory back; never raises."""
        ...

    def copy_in(self, address: int, values: Array) -> None:
        """Copies a C-contiguous host array to an address on the device."""
        ...

    def copy_out(self, values: Array, address: int) -> None:
        """Copies from an address on the device into a C-contiguous host array."""
        ...

    def copy_blocks(self, target: Blocks, source: Blocks, count: int, block_bytes: int) -> None:
        """Copies `count` blocks of `block_bytes` from and to the device, or within it."""
        ...


class _Block:
    """Device memory that is given back when the last view of it goes."""

    __slots__ = ("__weakref__", "address", "memory")

    def __init__(self, memory: DeviceMemory, num_bytes: int) -> None:
        self.memory = memory
        self.address = memory.allocate(num_bytes)
        # Not at exit: the driver may be gone by then, and the system takes the memory back.
        weakref.finalize(self, memory.free, self.address).atexit = False


class DeviceBuffer:
    """A shape over device memory. Views keep the whole block alive."""

    __slots__ = ("_address", "_block", "_dtype", "_shape")

    def __init__(self, block: _Block, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self._block = block
        self._address = address
        self._shape = shape
        self._dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._shape

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        return self._dtype

    @property
    def address(self) -> int:
        """Where the first element lies on the device."""
        return self._address

    def rows(self, start: int, count: int) -> DeviceBuffer:
        """Rows [start, start + count) of the first axis, over the same memory."""
        if not (start >= 0 and count >= 0 and start + count <= self._shape[0]):
            raise BackendError(
                f"rows {start} to {start + count} lie outside a buffer of {self._shape[0]} rows"
            )
        row_bytes = math.prod(self._shape[1:]) * dtype_bytes(self._dtype)
        shape = (count, *self._shape[1:])
        return DeviceBuffer(self._block, self._address + start * row_bytes, shape, self._dtype)

    def reshaped(self, shape: tuple[int, ...]) -> DeviceBuffer:
        """The first elements in another shape, over the same memory."""
        check_fits(self, shape)
        return DeviceBuffer(self._block, self._address, shape, self._dtype)

    def typed(self, offset_bytes: int, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
        """The memory from `offset_bytes` on as elements of another dtype."""
        end = offset_bytes + math.prod(shape) * dtype_bytes(dtype)
        if offset_bytes < 0 or end > math.prod(self._shape) * dtype_bytes(self._dtype):
            raise BackendError(f"bytes {offset_bytes} to {end} lie outside of the buffer")
        return DeviceBuffer(self._block, self._address + offset_bytes, shape, dtype)

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) to the device and waits."""
        check_like(self, values)
        self._block.memory.copy_in(self._address, np.ascontiguousarray(values))

    def read(self) -> Array:
        """A copy in host memory."""
        values = np.empty(self._shape, storage_dtype(self._dtype))
        self._block.memory.copy_out(values, self._address)
        return values

    def read_front(self, num_positions: int) -> Array:
        """The first positions of axis 2; see `ReachesFront`."""
        rows, heads, _, head_dim = self._shape
        values = np.empty((rows, heads, num_positions, head_dim), storage_dtype(self._dtype))
        self._copy_front(_in_host(values), self._blocks(), num_positions)
        return values

    def write_front(self, values: Array) -> None:
        """Writes the first positions of axis 2; see `ReachesFront`."""
        rows, heads, _, head_dim = self._shape
        num_positions = min(values.shape[2], self._shape[2])
        wanted = (rows, heads, num_positions, head_dim)
        if values.shape != wanted or values.dtype != storage_dtype(self._dtype):
            raise BackendError(
                f"the front of a buffer of {self._dtype}{list(self._shape)} cannot take "
                f"{values.dtype.name}{list(values.shape)}"
            )
        self._copy_front(self._blocks(), _in_host(np.ascontiguousarray(values)), num_positions)

    def copy_front(self, source: Buffer, num_positions: int) -> bool:
        """Copies the first positions of axis 2 on the device; see `ReachesFront`."""
        if not isinstance(source, DeviceBuffer) or source._block.memory is not self._block.memory:
            return False
        self._copy_front(self._blocks(), source._blocks(), num_positions)
        return True

    def _blocks(self) -> Blocks:
        """One block for each row and head."""
        position_bytes = self._shape[3] * dtype_bytes(self._dtype)
        return Blocks(self._address, self._shape[2] * position_bytes)

    def _copy_front(self, target: Blocks, source: Blocks, num_positions: int) -> None:
        rows, heads, _, head_dim = self._shape
        block_bytes = num_positions * head_dim * dtype_bytes(self._dtype)
        if block_bytes:
            self._block.memory.copy_blocks(target, source, rows * heads, block_bytes)

    def bind_input(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph input of an IOBinding."""
        kind = _element_type(self._dtype)
        binding.bind_input(
            name, *self._block.memory.ort_device, kind, list(self._shape), self._address
        )

    def bind_output(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph output of an IOBinding."""
        kind = _element_type(self._dtype)
        binding.bind_output(
            name, *self._block.memory.ort_device, kind, list(self._shape), self._address
        )


def _in_host(values: Array) -> Blocks:
    return Blocks(values, values.shape[2] * values.shape[3] * values.itemsize)


def _element_type(dtype: str) -> Any:
    """What ONNX Runtime is told that an address holds: numpy's type, ONNX's number of bfloat16."""
    return _ONNX_BFLOAT16 if dtype == "bfloat16" else numpy_dtype(dtype).type


def allocate_on_device(memory: DeviceMemory, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
    """Zeros in device memory.

    Raises:
        OutOfMemoryError: the device refuses the bytes.
    """
    block = _Block(memory, math.prod(shape) * dtype_bytes(dtype))
    return DeviceBuffer(block, block.address, shape, dtype)
