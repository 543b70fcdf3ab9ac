"""Buffers in memory that only ONNX Runtime can address: a device's opaque handles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from twostroke.backends.ort.buffers import check_like, numpy_dtype
from twostroke.backends.ort.library import first_line, onnxruntime
from twostroke.backends.protocol import Array, Buffer
from twostroke.errors import BackendError, OutOfMemoryError


class HandleBuffer:
    """A shape over an OrtValue whose memory has no address, and so no row views.

    Who inherits from it allocates the value and writes to it.
    """

    __slots__ = ("_dtype", "_shape", "_value")

    def __init__(self, value: Any, shape: tuple[int, ...], dtype: str) -> None:
        self._value = value
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

    def rows(self, start: int, count: int) -> Buffer:
        """Refused: the memory is a handle, not an address.

        Raises:
            BackendError: always; the backend says `has_row_views` is False.
        """
        raise BackendError("buffers of this backend have no row views; see `has_row_views`")

    def read(self) -> Array:
        """A copy in host memory."""
        return np.asarray(self._value.numpy())

    def bind_input(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph input of an IOBinding."""
        binding.bind_ortvalue_input(name, self._value)

    def bind_output(self, binding: Any, name: str) -> None:
        """Ties this memory to a graph output of an IOBinding."""
        binding.bind_ortvalue_output(name, self._value)


class OrtValueBuffer(HandleBuffer):
    """Device memory that ONNX Runtime allocates and only it can address."""

    __slots__ = ()

    def __init__(
        self, shape: tuple[int, ...], dtype: str, device_type: str, device_id: int
    ) -> None:
        """Allocates zeros.

        Raises:
            OutOfMemoryError: the device refuses the bytes.
        """
        kind = numpy_dtype(dtype)
        try:
            value = onnxruntime().OrtValue.ortvalue_from_shape_and_type(
                list(shape), kind.type, device_type, device_id
            )
        except Exception as error:
            raise OutOfMemoryError(
                f"{math.prod(shape) * kind.itemsize} bytes on {device_type} {device_id} for a "
                f"buffer of {dtype}{list(shape)} were refused: {first_line(error)} "
                f"Lower `kv.budget`, `context_tokens` or `scheduler.max_rows`."
            ) from error
        super().__init__(value, shape, dtype)
        self._value.update_inplace(np.zeros(shape, kind))

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) to the device."""
        check_like(self, values)
        self._value.update_inplace(np.ascontiguousarray(values))
