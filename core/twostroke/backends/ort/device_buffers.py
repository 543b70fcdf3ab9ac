"""Buffers in a device's own memory.

Two kinds: `DeviceBuffer` is a pointer, so that rows are views and the cache is allocated without
the runtime's arena; `OrtValueBuffer` is for devices whose memory is an opaque handle.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Protocol

import numpy as np

from twostroke.backends.ort.buffers import check_fits, check_like, numpy_dtype
from twostroke.backends.ort.library import first_line, onnxruntime
from twostroke.backends.protocol import Array, dtype_bytes, storage_dtype
from twostroke.errors import BackendError, OutOfMemoryError

_ONNX_BFLOAT16 = 16  # of TensorProto.DataType


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

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) to the device and waits."""
        check_like(self, values)
        self._block.memory.copy_in(self._address, np.ascontiguousarray(values))

    def read(self) -> Array:
        """A copy in host memory."""
        values = np.empty(self._shape, storage_dtype(self._dtype))
        self._block.memory.copy_out(values, self._address)
        return values

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


class OrtValueBuffer:
    """Device memory that ONNX Runtime allocates and only it can address. It has no row views."""

    __slots__ = ("_dtype", "_shape", "_value")

    def __init__(
        self, shape: tuple[int, ...], dtype: str, device_type: str, device_id: int
    ) -> None:
        """Allocates zeros.

        Raises:
            OutOfMemoryError: the device refuses the bytes.
        """
        kind = numpy_dtype(dtype)
        self._shape = shape
        self._dtype = dtype
        try:
            self._value: Any = onnxruntime().OrtValue.ortvalue_from_shape_and_type(
                list(shape), kind.type, device_type, device_id
            )
        except Exception as error:
            raise OutOfMemoryError(
                f"{math.prod(shape) * kind.itemsize} bytes on {device_type} {device_id} for a "
                f"buffer of {dtype}{list(shape)} were refused: {first_line(error)} "
                f"Lower `kv.budget`, `context_tokens` or `scheduler.max_rows`."
            ) from error
        self._value.update_inplace(np.zeros(shape, kind))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._shape

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        return self._dtype

    def rows(self, start: int, count: int) -> OrtValueBuffer:
        """Refused: the memory is a handle, not an address.

        Raises:
            BackendError: always; the backend says `has_row_views` is False.
        """
        raise BackendError("buffers of this backend have no row views; see `has_row_views`")

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) to the device."""
        check_like(self, values)
        self._value.update_inplace(np.ascontiguousarray(values))

    def read(self) -> Array:
        """A copy in host memory."""
        return np.asarray(self._value.numpy())

    def bind_input(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph input of an IOBinding."""
        binding.bind_ortvalue_input(name, self._value)

    def bind_output(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph output of an IOBinding."""
        binding.bind_ortvalue_output(name, self._value)
