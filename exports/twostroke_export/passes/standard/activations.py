"""Activations that ONNX Runtime fuses, in plain operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from twostroke_export.passes.standard.plain_ops import PlainOps, floats_of, optional, required


def plain_quick_gelu(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """QuickGelu: x * sigmoid(alpha * x); SiLU where alpha is 1."""
    states = scaled = required(node, 0)
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.702
    if alpha != 1.0:
        scaled = ops("Mul", states, ops.scalar(alpha, floats_of(node)))
    return [ops("Mul", states, ops("Sigmoid", scaled))]


def plain_gelu(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """Gelu, BiasGelu (exact) and FastGelu (by tanh), the latter two with a bias to add first."""
    states, bias = required(node, 0), optional(node, 1)
    if bias is not None:
        states = ops("Add", states, bias)
    return [ops("Gelu", states, approximate="tanh" if node.op_type == "FastGelu" else "none")]
