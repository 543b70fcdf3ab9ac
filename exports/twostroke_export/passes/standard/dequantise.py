"""Matrices quantised in blocks, read as floats from the very bytes that MatMulNBits reads.

Rows [.., out] of `in` columns, cut into blocks; 4 bits are packed with the even column in the low
half of a byte, which is how ONNX packs uint4 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from twostroke_export.passes.linears import constant
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, dtype_of

_TYPES = {8: ir.DataType.UINT8, 4: ir.DataType.UINT4}


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A stored matrix, or several: initializers of a graph, and how they are laid out.

    values: bytes of [.., out, in]; scales: [.., out, blocks] floats; zeros: bytes, None where the
    zero of a block is its middle.
    """

    values: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    bits: int
    block_size: int

    def whole(self, ops: PlainOps) -> ir.Value:
        """[.., out, blocks * block size] floats, by one DequantizeLinear over the stored bytes."""
        shape = tuple(map(int, dims(self.scales)))
        full = (*shape[:-1], shape[-1] * self.block_size)
        matrix = _stored(ops, self.values, full, _TYPES[self.bits])
        points = _zero_points(ops, self.zeros, shape, self.bits)
        return ops(
            "DequantizeLinear",
            *(matrix, self.scales, points),
            axis=len(shape) - 1,
            block_size=self.block_size,
        )

    def rows(self, ops: PlainOps, ids: ir.Value) -> ir.Value:
        """What `ids` pick along the first axis, of three axes in all: [a, b, in] floats.

        Bytes are gathered and dequantised then, so that the whole matrix never is.
        """
        dtype = dtype_of(self.scales)
        columns = self._gathered(ops, self.values, ids)
        blocks = ops("Reshape", columns, ops.ints(0, 0, -1, self.block_size))
        middle = ops.scalar(1 << (self.bits - 1), dtype)
        if self.zeros is not None:
            middle = self._gathered(ops, self.zeros, ids)
            if self.bits == 4:  # a row of an odd number ends with half a byte
                end = ops.ints(int(dims(self.scales)[-1]))
                middle = ops("Slice", middle, ops.ints(0), end, ops.ints(2))
            middle = ops("Unsqueeze", middle, ops.ints(-1))
        scales = ops("Unsqueeze", ops("Gather", self.scales, ids, axis=0), ops.ints(-1))
        rows = ops("Mul", ops("Sub", blocks, middle), scales)
        return ops("Reshape", rows, ops.ints(0, 0, -1))

    def _gathered(self, ops: PlainOps, stored: ir.Value, ids: ir.Value) -> ir.Value:
        """Rows of stored bytes as numbers, in floats."""
        dtype = dtype_of(self.scales)
        rows = ops("Cast", ops("Gather", stored, ids, axis=0), to=dtype)
        return _halves(ops, rows, dtype) if self.bits == 4 else rows


def _halves(ops: PlainOps, pairs: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Bytes [a, b, n] as floats -> their low and high halves in turn, [a, b, 2 n]."""
    sixteen = ops.scalar(16.0, dtype)
    high = ops("Floor", ops("Div", pairs, sixteen))
    low = ops("Sub", pairs, ops("Mul", high, sixteen))
    columns = [ops("Unsqueeze", half, ops.ints(-1)) for half in (low, high)]
    return ops("Reshape", ops("Concat", *columns, axis=-1), ops.ints(0, 0, -1))


def _stored(ops: PlainOps, value: ir.Value, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
    """The same bytes of the data file in a shape and a type."""
    return constant(ops.graph, ops.weights.reshaped(value.const_value, shape, dtype))


def _zero_points(
    ops: PlainOps, given: ir.Value | None, shape: tuple[int, ...], bits: int
) -> ir.Value:
    """[.., out, blocks] of the values' type."""
    num_points, num_blocks = int(np.prod(shape)), shape[-1]
    if given is None:
        middle = 0x88 if bits == 4 else 0x80
        num_bytes = -(-num_points * bits // 8)
        stored = ops.weights.once(
            ("middle", num_bytes, middle), lambda: np.full(num_bytes, middle, np.uint8)
        )
        return constant(ops.graph, ops.weights.reshaped(stored, shape, _TYPES[bits]))
    if bits == 8 or num_blocks % 2 == 0:
        return _stored(ops, given, shape, _TYPES[bits])
    assert given.const_value is not None  # a parameter
    pairs = given.const_value.numpy().reshape(num_points // num_blocks, -1)
    halves = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(len(pairs), -1)[:, :num_blocks]
    flat = np.resize(halves, num_points + num_points % 2)
    stored = ops.weights.add(flat[0::2] | (flat[1::2] << 4))
    return constant(ops.graph, ops.weights.reshaped(stored, shape, _TYPES[bits]))
