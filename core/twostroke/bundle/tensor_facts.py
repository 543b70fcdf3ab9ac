"""What a TensorProto says of itself; its values stay where they are.

Field numbers from onnx.proto (github.com/onnx/onnx).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from twostroke.bundle.wire import VARINT, WireField, varint, wire_fields

_DIMS, _DATA_TYPE, _NAME, _RAW, _EXTERNAL_DATA = 1, 2, 8, 9, 13


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """`element_type` is ONNX's number (TensorProto.DataType).

    `raw` is a view of the values where they stand in the message as bytes; `external` has the
    entries of external data (`location`, `offset`, `length`), and is empty where there is none.
    """

    name: str
    element_type: int
    dims: tuple[int, ...]
    raw: memoryview | None
    external: Mapping[str, str]


def read_tensor(message: memoryview) -> TensorFacts:
    """The facts of a serialized TensorProto.

    Raises:
        ValueError: the bytes are not of this format, or cut off.
    """
    name, element_type, raw = "", 0, None
    dims: list[int] = []
    external: dict[str, str] = {}
    for found in wire_fields(message):
        if found.number == _DIMS:
            dims.extend(_numbers(found))
        elif found.number == _DATA_TYPE:
            element_type = found.number_value
        elif found.number == _NAME:
            name = found.text
        elif found.number == _RAW:
            raw = found.value
        elif found.number == _EXTERNAL_DATA:
            entry = {part.number: part.text for part in wire_fields(found.value)}
            external[entry.get(1, "")] = entry.get(2, "")
    return TensorFacts(name, element_type, tuple(dims), raw, external)


def _numbers(found: WireField) -> Iterator[int]:
    """A repeated number, which writers may pack into one field."""
    if found.wire_type == VARINT:
        yield found.number_value
        return
    position = 0
    while position < len(found.value):
        value, position = varint(found.value, position)
        yield value
