"""Writes ONNX graphs without the package `onnx`: as much of the format as small graphs need.

The messages and field numbers are those of onnx.proto (ONNX IR version 10); the encoding is that
of Protocol Buffers (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}
"""TensorProto.DataType by numpy's name."""

_IR_VERSION = 10
_VARINT, _BYTES = 0, 2  # wire types
_ATTRIBUTE_INT, _ATTRIBUTE_INTS = 2, 7
_EXTERNAL = 1  # TensorProto.DataLocation
_ALIGNMENT_BYTES = 64
_EXTERNAL_FROM_BYTES = 256


def node(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str = "",
    **attributes: int | Sequence[int],
) -> bytes:
    """A NodeProto. Attributes are whole numbers, one or several."""
    message = b"".join(_text(1, name) for name in inputs)
    message += b"".join(_text(2, name) for name in outputs)
    message += _text(3, outputs[0]) + _text(4, op)
    message += b"".join(_message(5, _attribute(*pair)) for pair in attributes.items())
    return message + (_text(7, domain) if domain else b"")


def value_info(name: str, dtype: str, shape: Sequence[int | str]) -> bytes:
    """A ValueInfoProto: a graph input or output; symbolic dimensions are strings."""
    dims = b"".join(
        _message(1, _text(2, dim) if isinstance(dim, str) else _number(1, dim)) for dim in shape
    )
    tensor = _number(1, ELEMENT_TYPES[dtype]) + _message(2, dims)
    return _text(1, name) + _message(2, _message(1, tensor))


def free_value_info(name: str, dtype: str) -> bytes:
    """As `value_info`, of any number of dimensions."""
    return _text(1, name) + _message(2, _message(1, _number(1, ELEMENT_TYPES[dtype])))


@dataclass(slots=True)
class WeightsFile:
    """The bytes of tensors that lie outside of the graphs, in a file beside them."""

    name: str
    content: bytearray = field(default_factory=bytearray)

    def append(self, values: Array) -> Mapping[str, str]:
        """Adds a tensor and answers where it lies, as ONNX writes it down."""
        self.content += bytes(-len(self.content) % _ALIGNMENT_BYTES)
        place = {
            "location": self.name,
            "offset": str(len(self.content)),
            "length": str(values.nbytes),
        }
        self.content += values.tobytes()
        return place


def tensor(name: str, values: Array, weights: WeightsFile) -> bytes:
    """A TensorProto; from 256 bytes on its values go to `weights`, which is mutated."""
    message = b"".join(_number(1, dim) for dim in values.shape)
    message += _number(2, ELEMENT_TYPES[values.dtype.name]) + _text(8, name)
    if values.nbytes < _EXTERNAL_FROM_BYTES:
        return message + _message(9, values.tobytes())
    for key, value in weights.append(values).items():
        message += _message(13, _text(1, key) + _text(2, value))
    return message + _number(14, _EXTERNAL)


def model(
    name: str,
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    initializers: Sequence[bytes],
    opsets: Mapping[str, int],
) -> bytes:
    """A ModelProto of one graph. `opsets` are versions by domain."""
    graph = b"".join(_message(1, each) for each in nodes) + _text(2, name)
    graph += b"".join(_message(5, each) for each in initializers)
    graph += b"".join(_message(11, each) for each in inputs)
    graph += b"".join(_message(12, each) for each in outputs)
    message = _number(1, _IR_VERSION) + _text(2, "twostroke.testing") + _message(7, graph)
    for domain, version in opsets.items():
        message += _message(8, _text(1, domain) + _number(2, version))
    return message


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _ATTRIBUTE_INT)
    numbers = b"".join(_number(8, each) for each in value)
    return _text(1, name) + numbers + _number(20, _ATTRIBUTE_INTS)


def _number(number: int, value: Any) -> bytes:
    return _key(number, _VARINT) + _varint(int(np.int64(value)) % 2**64)  # two's complement


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _message(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
