"""The constants of a graph, read without the package `onnx`.

Field numbers are those of onnx.proto's TensorProto.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.bundle.wire import VARINT, Bytes, varint, wire_fields

_DIMS, _DATA_TYPE, _NAME, _RAW, _EXTERNAL = 1, 2, 8, 9, 13
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    10: np.dtype(np.float16),
}


@dataclass(slots=True)
class _Tensor:
    """An initializer as the file has it: its bytes, or where they are."""

    name: str = ""
    data_type: int = 0
    shape: list[int] = field(default_factory=list)
    raw: Bytes | None = None
    place: dict[str, str] = field(default_factory=dict)


class Constants:
    """Holds the initializers of one graph whose external data lies in `folder`.

    Files are mapped, so only what is asked for is read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, _Tensor] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def add(self, message: Bytes) -> str:
        """Takes in a TensorProto; answers its name. Mutates self."""
        tensor = _tensor(message)
        self._tensors[tensor.name] = tensor
        return tensor.name

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a constant; None where there is none, or none that can be read here."""
        tensor = self._tensors.get(name)
        if tensor is None or (tensor.raw is None and not tensor.place):
            return None
        return _DTYPES.get(tensor.data_type)

    def array(self, name: str) -> Any:
        """A constant as a read-only array; its `dtype` must not be None.

        Raises:
            OSError: the file of its data can't be mapped.
            ValueError: the file is too short.
        """
        tensor, dtype = self._tensors[name], self.dtype(name)
        if tensor.raw is not None:
            return np.frombuffer(tensor.raw, dtype).reshape(tensor.shape)
        count = int(np.prod(tensor.shape))
        offset = int(tensor.place.get("offset", "0"))
        mapped = self._map(tensor.place["location"])
        return np.frombuffer(mapped, dtype, count, offset).reshape(tensor.shape)

    def _map(self, location: str) -> mmap.mmap:
        if location not in self._maps:
            with (self._folder / location).open("rb") as file:
                self._maps[location] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[location]


def _tensor(message: Bytes) -> _Tensor:
    tensor = _Tensor()
    for found in wire_fields(memoryview(message)):
        if found.number == _DIMS:
            is_one = found.wire_type == VARINT
            tensor.shape += [found.number_value] if is_one else _varints(found.value)
        elif found.number == _DATA_TYPE:
            tensor.data_type = found.number_value
        elif found.number == _NAME:
            tensor.name = found.text
        elif found.number == _RAW:
            tensor.raw = found.value
        elif found.number == _EXTERNAL:
            pair = {part.number: part.text for part in wire_fields(found.value)}
            tensor.place[pair[1]] = pair.get(2, "")
    return tensor


def _varints(message: memoryview) -> list[int]:
    values, position = [], 0
    while position < len(message):
        value, position = varint(message, position)
        values.append(value)
    return values
