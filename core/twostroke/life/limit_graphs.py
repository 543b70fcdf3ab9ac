"""Graphs of one matrix product, to measure how fast a backend multiplies.

Written by hand in the wire format, because `onnx` is no part of a serving environment. Field
numbers from onnx.proto (github.com/onnx/onnx).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twostroke.backends.protocol import Array
from twostroke.bundle.wire import delimited, encode_varint

_ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6}
_IR_VERSION, _OPSET = 8, 17


def product_graph(operator: str, rows: int, weights: Array, dtypes: tuple[str, str]) -> bytes:
    """An .onnx file: a [rows, K] times `weights` [K, N] is y [rows, N].

    `dtypes` are numpy's names of the dtypes of `a` and `y`.
    """
    depth, columns = weights.shape
    graph = (
        delimited(1, _texts(1, ("a", "b")) + _texts(2, ("y",)) + _texts(4, (operator,)))
        + _texts(2, ("product",))
        + delimited(5, _initializer("b", weights))
        + delimited(11, _declared("a", dtypes[0], (rows, depth)))
        + delimited(12, _declared("y", dtypes[1], (rows, columns)))
    )
    return _number(1, _IR_VERSION) + delimited(7, graph) + delimited(8, _number(2, _OPSET))


def _initializer(name: str, values: Array) -> bytes:
    dims = b"".join(_number(1, size) for size in values.shape)
    raw = np.ascontiguousarray(values).tobytes()
    return (
        dims
        + _number(2, _ELEMENT_TYPES[values.dtype.name])
        + _texts(8, (name,))
        + delimited(9, raw)
    )


def _declared(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    dims = b"".join(delimited(1, _number(1, size)) for size in shape)
    tensor = _number(1, _ELEMENT_TYPES[dtype]) + delimited(2, dims)
    return _texts(1, (name,)) + delimited(2, delimited(1, tensor))


def _texts(number: int, texts: Sequence[str]) -> bytes:
    return b"".join(delimited(number, text.encode()) for text in texts)


def _number(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)
