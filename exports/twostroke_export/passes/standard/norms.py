"""RMS norms and residual norms in plain operators (Zhang and Sennrich 2019).

The sequence Pow, ReduceMean, Add, Sqrt, Div, Mul is the one that runtimes look for to fuse it
again. The mean is taken in float32 whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from twostroke_export.passes.standard.plain_ops import PlainOps, dtype_of, optional, required

_FLOAT = ir.DataType.FLOAT


def plain_rms_norm(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """SimplifiedLayerNormalization: x [..., channels] over its root mean square, times a gain."""
    epsilon = node.attributes["epsilon"].as_float()
    return [_rms_norm(ops, required(node, 0), required(node, 1), epsilon)]


def plain_skip_rms_norm(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value | None]:
    """SkipSimplifiedLayerNormalization: the norm of a sum, and the sum itself."""
    total = _sum(ops, node, optional(node, 3))
    epsilon = node.attributes["epsilon"].as_float()
    return [_rms_norm(ops, total, required(node, 2), epsilon), None, None, total]


def plain_skip_norm(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value | None]:
    """SkipLayerNormalization: the same with a mean and a shift."""
    total = _sum(ops, node, optional(node, 4))
    epsilon = node.attributes["epsilon"].as_float()
    gain, shift = required(node, 2), optional(node, 3)
    normed = ops("LayerNormalization", total, gain, shift, axis=-1, epsilon=epsilon)
    return [normed, None, None, total]


def _sum(ops: PlainOps, node: ir.Node, bias: ir.Value | None) -> ir.Value:
    total = ops("Add", required(node, 0), required(node, 1))
    if bias is not None:
        total = ops("Add", total, bias)
    total.type = required(node, 0).type
    return total


def _rms_norm(ops: PlainOps, states: ir.Value, gain: ir.Value, epsilon: float) -> ir.Value:
    dtype = dtype_of(gain)
    wide = ops.cast(states, dtype, _FLOAT)
    squares = ops("Pow", wide, ops.scalar(2.0))
    mean = ops("ReduceMean", squares, ops.ints(-1), keepdims=1)  # [..., 1]
    root = ops("Sqrt", ops("Add", mean, ops.scalar(epsilon)))
    return ops("Mul", ops.cast(ops("Div", wide, root), _FLOAT, dtype), gain)
