"""The small tensors of a run: in one copy where a backend can, one by one elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from twostroke.backends.capabilities import Staged, StagesTensors
from twostroke.backends.protocol import Array, Backend, Buffer

Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype by name."""


def stage(backend: Backend, tensors: Tensors, *, is_for_one_run: bool = False) -> Staged:
    """Room for small tensors that runs of a backend's session read or write.

    `is_for_one_run`: pinned memory costs more to allocate than it saves in a single copy.

    Raises:
        OutOfMemoryError: memory is refused.
    """
    if isinstance(backend, StagesTensors) and not is_for_one_run:
        return backend.stage(tensors)
    return _OneByOne(backend, tensors)


class _OneByOne:
    """A buffer in host memory for each. Values are gathered in host arrays that are kept, because a
    step of a small model is over in a few milliseconds.
    """

    def __init__(self, backend: Backend, tensors: Tensors) -> None:
        self.buffers: dict[str, Buffer] = {
            name: backend.allocate(shape, dtype, on_host=True)
            for name, (shape, dtype) in tensors.items()
        }
        self.values: dict[str, Array] = {
            name: np.zeros(buffer.shape, np.dtype(buffer.dtype))
            for name, buffer in self.buffers.items()
        }
        self._feeds = [(buffer, self.values[name]) for name, buffer in self.buffers.items()]

    def send(self) -> None:
        """Writes each buffer."""
        for buffer, value in self._feeds:
            buffer.write(value)

    def fetch(self) -> None:
        """Reads each buffer."""
        self.values.update((name, buffer.read()) for name, buffer in self.buffers.items())
