"""Memory of an echo backend that is a device: counted, limited, and out of the host's reach."""

from __future__ import annotations

import math
import weakref

import numpy as np

from twostroke.backends.protocol import Array, Buffer
from twostroke.errors import BackendError, OutOfMemoryError


class EchoMemory:
    """What a device has of memory, and what was ever taken of it. `limit_bytes` 0: no end of it."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.peak_bytes = 0

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Zeros that are given back when the last view of them goes.

        Raises:
            OutOfMemoryError: more than there is.
        """
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if self.limit_bytes and self.taken_bytes + num_bytes > self.limit_bytes:
            raise OutOfMemoryError(
                f"echo: {num_bytes} bytes were refused, {self.limit_bytes - self.taken_bytes} are "
                f"free."
            )
        values = np.zeros(shape, dtype)
        self.taken_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.taken_bytes)
        weakref.finalize(values, self._free, num_bytes)
        return values

    def _free(self, num_bytes: int) -> None:
        self.taken_bytes -= num_bytes


class EchoDeviceBuffer:
    """A shape over device memory: the host reads copies of it."""

    def __init__(self, values: Array, memory: EchoMemory, *, has_row_views: bool) -> None:
        self.values = values  # for the echo "graphs", which run on the device
        self._memory = memory
        self._has_row_views = has_row_views

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.values.shape

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        return str(self.values.dtype)

    def rows(self, start: int, count: int) -> EchoDeviceBuffer:
        """A view of rows [start, start + count)."""
        if not (self._has_row_views and 0 <= start <= start + count <= self.shape[0]):
            raise BackendError(f"echo: no rows {start} to {start + count} of {self.shape}")
        return self._view(self.values[start : start + count])

    def reshaped(self, shape: tuple[int, ...]) -> EchoDeviceBuffer:
        """A view of the first elements."""
        return self._view(self.values.reshape(-1)[: math.prod(shape)].reshape(shape))

    def write(self, values: Array) -> None:
        """Copies values of the same shape and dtype in."""
        if values.shape != self.shape or values.dtype != self.values.dtype:
            raise BackendError(
                f"echo: {values.dtype}{list(values.shape)} was written to a buffer of "
                f"{self.dtype}{list(self.shape)}"
            )
        self.values[...] = values

    def read(self) -> Array:
        """A copy."""
        return self.values.copy()

    def read_front(self, num_positions: int) -> Array:
        """A copy of the first positions of axis 2."""
        return self.values[:, :, :num_positions].copy()

    def write_front(self, values: Array) -> None:
        """Copies values to the first positions of axis 2."""
        self.values[:, :, : values.shape[2]] = values

    def copy_front(self, source: Buffer, num_positions: int) -> bool:
        """Copies the first positions of axis 2 of another buffer of this device."""
        if not isinstance(source, EchoDeviceBuffer) or source._memory is not self._memory:
            return False
        self.write_front(source.values[:, :, :num_positions])
        return True

    def _view(self, values: Array) -> EchoDeviceBuffer:
        return EchoDeviceBuffer(values, self._memory, has_row_views=self._has_row_views)
