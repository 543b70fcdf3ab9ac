"""Rotary embeddings in plain operators, their angles gathered from tables by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, dtype_of, required


def plain_rotary_embedding(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """RotaryEmbedding of [batch, sequence, heads * head_dim], by the positions of the graph."""
    states, num_heads = required(node, 0), node.attributes["num_heads"].as_int()
    width = int(dims(states)[2])
    head_dim = width // num_heads
    is_interleaved = bool(node.attributes["interleaved"].as_int())
    by_heads = ops("Reshape", states, ops.ints(0, 0, num_heads, head_dim))
    turned = ops("Transpose", by_heads, perm=(0, 2, 1, 3))  # [batch, heads, sequence, head_dim]
    rotation = Rotation(required(node, 2), required(node, 3), is_interleaved)
    rotated = rotation.apply(ops, turned, head_dim)
    back = ops("Transpose", rotated, perm=(0, 2, 1, 3))
    return [ops("Reshape", back, ops.ints(0, 0, width))]


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin: [positions, rotary_dim / 2] constants, as GroupQueryAttention takes them."""

    cos: ir.Value
    sin: ir.Value
    is_interleaved: bool

    def apply(self, ops: PlainOps, states: ir.Value, head_dim: int, scale: float = 1.0) -> ir.Value:
        """Turns [batch, heads, sequence, head_dim] and multiplies it by `scale`.

        Channels behind rotary_dim are not turned.
        """
        half = self._half
        if 2 * half == head_dim:
            return self._turn(ops, states, scale)
        sizes = ops.ints(2 * half, head_dim - 2 * half)
        turning, staying = ops.many(2, "Split", states, sizes, axis=-1)
        turned = ops("Concat", self._turn(ops, turning, 1.0), staying, axis=-1)
        return turned if scale == 1.0 else ops("Mul", turned, self._scalar(ops, scale))

    def _scalar(self, ops: PlainOps, value: float) -> ir.Value:
        return ops.scalar(value, dtype_of(self.cos))

    @property
    def _half(self) -> int:
        return int(dims(self.cos)[1])

    def _turn(self, ops: PlainOps, states: ir.Value, scale: float) -> ir.Value:
        """[batch, heads, sequence, rotary_dim] by angles [batch, 1, sequence, rotary_dim]."""
        half = self._half
        cos, sin = (self._angles(ops, table, scale) for table in (self.cos, self.sin))
        if self.is_interleaved:  # [.., rotary_dim] -> [.., rotary_dim / 2, 2]
            pairs = ops("Reshape", states, ops.ints(0, 0, 0, half, 2))
            first, second = ops.many(2, "Split", pairs, ops.ints(1, 1), axis=-1)
            crossed = ops("Concat", ops("Neg", second), first, axis=-1)
            crossed = ops("Reshape", crossed, ops.ints(0, 0, 0, 2 * half))
        else:
            # OpenVINO knows a rotation by these very operators (a product by -1, the axis counted
            # from the front) and carries it out in one go.
            first, second = ops.many(2, "Split", states, ops.ints(half, half), axis=3)
            minus = ops("Mul", second, self._scalar(ops, -1.0))
            crossed = ops("Concat", minus, first, axis=-1)
        return ops("Add", ops("Mul", states, cos), ops("Mul", crossed, sin))

    def _angles(self, ops: PlainOps, table: ir.Value, scale: float) -> ir.Value:
        """[batch, 1, sequence, rotary_dim], made once for each table and scale."""
        key = ("angles", table, self.is_interleaved)
        angles = ops.shared(key, lambda: self._gather(ops, table))
        if scale == 1.0:
            return angles
        return ops.shared((*key, scale), lambda: ops("Mul", angles, self._scalar(ops, scale)))

    def _gather(self, ops: PlainOps, table: ir.Value) -> ir.Value:
        rows = ops("Gather", table, ops.input(contract.POSITION_IDS), axis=0)
        if self.is_interleaved:  # each angle twice in a row
            column = ops("Unsqueeze", rows, ops.ints(-1))
            rows = ops("Concat", column, column, axis=-1)
            rows = ops("Reshape", rows, ops.ints(0, 0, 2 * self._half))
        else:
            rows = ops("Concat", rows, rows, axis=-1)
        return ops("Unsqueeze", rows, ops.ints(1))
