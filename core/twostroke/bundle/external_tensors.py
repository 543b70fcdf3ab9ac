"""Which initializers of an .onnx file have their bytes in another file, and where.

Field numbers from onnx.proto (github.com/onnx/onnx).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twostroke.bundle.wire import VARINT, WireField, varint, wire_fields
from twostroke.errors import BundleError

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _EXTERNAL_DATA = 1, 2, 8, 13  # TensorProto


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """`num_bytes` at `offset` of a file; `element_type` is ONNX's number (TensorProto.DataType)."""

    file: Path
    offset: int
    num_bytes: int
    dims: tuple[int, ...]
    element_type: int


def external_tensors(path: Path) -> dict[str, ExternalTensor]:
    """The initializers outside of the graph at `path`, by name. Reads no weights.

    Those whose length is not written down are left out.

    Raises:
        BundleError: the file cannot be read or is no ONNX graph.
    """
    found: dict[str, ExternalTensor] = {}
    try:
        with path.open("rb") as file:
            # Unmapped with the last view of it.
            message = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for graph in (part.value for part in wire_fields(message) if part.number == _GRAPH):
            for part in wire_fields(graph):
                if part.number == _INITIALIZER:
                    found.update(_external(part, path.parent))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise BundleError(f"{path} is not a whole ONNX graph ({error}). Copy it again.") from None
    return found


def _external(tensor: WireField, folder: Path) -> Iterator[tuple[str, ExternalTensor]]:
    name, element_type = "", 0
    dims: list[int] = []
    place: dict[str, str] = {}
    for part in wire_fields(tensor.value):
        if part.number == _DIMS:
            dims.extend(_numbers(part))
        elif part.number == _DATA_TYPE:
            element_type = part.number_value
        elif part.number == _NAME:
            name = part.text
        elif part.number == _EXTERNAL_DATA:
            entry = {found.number: found.text for found in wire_fields(part.value)}
            place[entry.get(1, "")] = entry.get(2, "")
    if "location" in place and "length" in place:
        file = folder / place["location"]
        offset, length = int(place.get("offset") or 0), int(place["length"])
        yield name, ExternalTensor(file, offset, length, tuple(dims), element_type)


def _numbers(part: WireField) -> Iterator[int]:
    """A repeated number, which writers may pack into one field."""
    if part.wire_type == VARINT:
        yield part.number_value
        return
    position = 0
    while position < len(part.value):
        value, position = varint(part.value, position)
        yield value
