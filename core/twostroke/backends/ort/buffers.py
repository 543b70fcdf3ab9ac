"""Buffers in host memory: numpy arrays that ONNX Runtime reads and writes in place."""

from __future__ import annotations

import functools
import math
import mmap
from typing import Any

import numpy as np

from twostroke.backends.ort.library import onnxruntime
from twostroke.backends.ort.pages import give_pages_back, map_pages
from twostroke.backends.protocol import Array, storage_dtype
from twostroke.errors import BackendError, OutOfMemoryError

_DTYPES = frozenset({"float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"})
_PAGED_FROM_BYTES = 1 << 20  # from here on buffers get pages of their own


class HostBuffer:
    """A C-contiguous numpy array, and the OrtValue over the same memory.

    The OrtValue aliases the array without owning it, so the array is kept as long as the buffer;
    bindings keep the buffers. `pages`: the mapping that the array lies in, where it has its own.
    """

    __slots__ = ("_pages", "_value", "array")

    def __init__(self, array: Array, pages: mmap.mmap | None = None) -> None:
        if not array.flags.c_contiguous:
            raise BackendError("a host buffer needs a C-contiguous array")
        self.array = array
        self._pages = pages
        self._value: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        return _dtype_name(self.array.dtype)

    def rows(self, start: int, count: int) -> HostBuffer:
        """Rows [start, start + count) of the first axis, over the same memory."""
        if not (start >= 0 and count >= 0 and start + count <= self.array.shape[0]):
            raise BackendError(
                f"rows {start} to {start + count} lie outside a buffer of "
                f"{self.array.shape[0]} rows"
            )
        return HostBuffer(self.array[start : start + count], self._pages)

    def reshaped(self, shape: tuple[int, ...]) -> HostBuffer:
        """The first elements in another shape, over the same memory."""
        check_fits(self, shape)
        return HostBuffer(self.array.reshape(-1)[: math.prod(shape)].reshape(shape), self._pages)

    def give_back(self, start: int) -> bool:
        """Returns the pages behind position `start` of axis 2 to the system; see `GivesBack`."""
        return self._pages is not None and give_pages_back(self._pages, self.array, start)

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) into the memory."""
        array = self.array
        if values.shape != array.shape or values.dtype != array.dtype:
            check_like(self, values)  # slower, and says what differs
        array[...] = values

    def read(self) -> Array:
        """The memory itself, as an array of the buffer's shape."""
        return self.array

    def ort_value(self) -> Any:
        """The OrtValue over this memory, made once."""
        if self._value is None:
            self._value = onnxruntime().OrtValue.ortvalue_from_numpy(self.array)
        return self._value

    def bind_input(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph input of an IOBinding."""
        binding.bind_ortvalue_input(name, self.ort_value())

    def bind_output(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph output of an IOBinding."""
        binding.bind_ortvalue_output(name, self.ort_value())


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)  # numpy puts it together anew each time, and bindings ask 125 times


def check_like(buffer: Any, values: Array) -> None:
    """Refuses values that do not match a buffer.

    Raises:
        BackendError: another shape or dtype; both are named.
    """
    if values.shape != buffer.shape or values.dtype != storage_dtype(buffer.dtype):
        raise BackendError(
            f"a buffer of {buffer.dtype}{list(buffer.shape)} cannot take "
            f"{values.dtype.name}{list(values.shape)}"
        )


def check_fits(buffer: Any, shape: tuple[int, ...]) -> None:
    """Refuses a view that needs more elements than a buffer has.

    Raises:
        BackendError: both shapes are named.
    """
    if math.prod(shape) > math.prod(buffer.shape):
        raise BackendError(f"a buffer of {list(buffer.shape)} cannot be seen as {list(shape)}")


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Numpy's dtype of that name.

    Raises:
        BackendError: one that graphs are not bound with (bfloat16 among them).
    """
    if dtype not in _DTYPES:
        raise BackendError(
            f"buffers of dtype {dtype!r} are not supported; export the model with a KV cache in "
            f"float32 or float16"
        )
    return np.dtype(dtype)


def allocate_host(shape: tuple[int, ...], dtype: str) -> HostBuffer:
    """Zeros in host memory; pages that are never written cost nothing.

    Large buffers are mapped page by page, so that they can be returned page by page.

    Raises:
        OutOfMemoryError: the system refuses the bytes.
    """
    kind = numpy_dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    try:
        if num_bytes < _PAGED_FROM_BYTES:
            return HostBuffer(np.zeros(shape, kind))
        pages = map_pages(num_bytes)
        return HostBuffer(np.frombuffer(pages, kind).reshape(shape), pages)
    except (MemoryError, OSError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(
            f"{num_bytes} bytes of host memory for a buffer of {dtype}{list(shape)} were refused "
            f"({error}). Lower `kv.budget`, `context_tokens` or `scheduler.max_rows`."
        ) from error
