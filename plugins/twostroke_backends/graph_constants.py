"""The constants of a graph, read without the package `onnx`."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.bundle.tensor_facts import TensorFacts, read_tensor
from twostroke.bundle.wire import Bytes

_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    10: np.dtype(np.float16),
}


class Constants:
    """Holds the initializers of one graph whose external data lies in `folder`.

    Files are mapped, so only what is asked for is read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, TensorFacts] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def add(self, message: Bytes) -> str:
        """Takes in a TensorProto; answers its name. Mutates self."""
        tensor = read_tensor(memoryview(message))
        self._tensors[tensor.name] = tensor
        return tensor.name

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a constant; None where there is none, or none that can be read here."""
        tensor = self._tensors.get(name)
        if tensor is None or (tensor.raw is None and not tensor.external):
            return None
        return _DTYPES.get(tensor.element_type)

    def array(self, name: str) -> Any:
        """A constant as a read-only array; its `dtype` must not be None.

        Raises:
            OSError: the file of its data can't be mapped.
            ValueError: the file is too short.
        """
        tensor, dtype = self._tensors[name], self.dtype(name)
        if tensor.raw is not None:
            return np.frombuffer(tensor.raw, dtype).reshape(tensor.dims)
        count = int(np.prod(tensor.dims))
        offset = int(tensor.external.get("offset", "0"))
        mapped = self._map(tensor.external["location"])
        return np.frombuffer(mapped, dtype, count, offset).reshape(tensor.dims)

    def _map(self, location: str) -> mmap.mmap:
        if location not in self._maps:
            with (self._folder / location).open("rb") as file:
                self._maps[location] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[location]
