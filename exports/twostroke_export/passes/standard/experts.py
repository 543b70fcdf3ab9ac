"""MoE and QMoE in plain operators.

A prompt runs every expert over every token and keeps what was chosen; a single token gathers the
matrices of its experts (as they are stored, quantised or not). Matrices are [experts, out, in] with
gate and up in alternating rows, and multiply columns of states from the left, so that none is
turned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from twostroke.errors import ExportError
from twostroke_export.passes.standard.dequantise import QuantisedMatrix
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, dtype_of, optional, required


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix of every expert, [experts, out, in], and what is added to it, [experts, out]."""

    matrix: ir.Value | QuantisedMatrix
    bias: ir.Value | None

    @property
    def floats(self) -> ir.Value:
        """A stored tensor [experts, out, ..] of the type that the product computes in."""
        return self.matrix if isinstance(self.matrix, ir.Value) else self.matrix.scales

    @property
    def num_out(self) -> int:
        """Rows of each expert's matrix."""
        return int(dims(self.floats)[1])

    def times(self, ops: PlainOps, columns: ir.Value, chosen: ir.Value | None) -> ir.Value:
        """[experts, in, columns] -> [experts, out, columns]; of all experts, or the `chosen`."""
        product = ops("MatMul", self._floats(ops, chosen), columns)
        if self.bias is None:
            return product
        bias = self.bias if chosen is None else ops("Gather", self.bias, chosen, axis=0)
        return ops("Add", product, ops("Unsqueeze", bias, ops.ints(-1)))

    def _floats(self, ops: PlainOps, chosen: ir.Value | None) -> ir.Value:
        if isinstance(self.matrix, QuantisedMatrix):
            return self.matrix.whole(ops) if chosen is None else self.matrix.rows(ops, chosen)
        return self.matrix if chosen is None else ops("Gather", self.matrix, chosen, axis=0)


def plain_experts(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """MoE: states [tokens, hidden] and router logits [tokens, experts] -> [tokens, hidden].

    Raises:
        ExportError: the experts compute something else than a SwiGLU in alternating rows.
    """
    products = [_Product(required(node, index), optional(node, index + 1)) for index in (2, 4)]
    return [_mixed(ops, node, *products)]


def plain_quantised_experts(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """QMoE: the same with quantised matrices and, as its last input, weights of their own.

    Raises:
        ExportError: as `plain_experts`.
    """
    bits = node.attributes["expert_weight_bits"].as_int()
    block_size = node.attributes["block_size"].as_int()
    products = []
    for first, zeros in ((2, 11), (5, 12)):
        parts = (required(node, first), required(node, first + 1), optional(node, zeros))
        matrix = QuantisedMatrix(*parts, bits, block_size)
        products.append(_Product(matrix, optional(node, first + 2)))
    return [_mixed(ops, node, *products)]


def _mixed(ops: PlainOps, node: ir.Node, gate_up: _Product, down: _Product) -> ir.Value:
    _refuse_unknown(node)
    states = required(node, 0)
    chosen, weights = _routing(ops, node)  # [tokens, k] each
    if ops.is_single_token:
        num_chosen = node.attributes["k"].as_int()
        experts = ops("Reshape", chosen, ops.ints(-1))  # [tokens * k]
        columns = ops("Unsqueeze", states, ops.ints(1, -1))  # [tokens, 1, hidden, 1]
        columns = ops("Expand", columns, ops.ints(1, num_chosen, 1, 1))
        columns = ops("Reshape", columns, ops.ints(-1, down.num_out, 1))
        outputs = _feed_forward(ops, node, columns, experts, gate_up, down)
        outputs = ops("Reshape", outputs, ops.ints(-1, num_chosen, down.num_out))
        shares = ops("Unsqueeze", weights, ops.ints(-1))  # [tokens, k, 1]
        return ops("ReduceSum", ops("Mul", outputs, shares), ops.ints(1), keepdims=0)
    columns = ops("Unsqueeze", ops("Transpose", states, perm=(1, 0)), ops.ints(0))
    outputs = _feed_forward(ops, node, columns, None, gate_up, down)  # [experts, hidden, tokens]
    none = ops(
        "ConstantOfShape", ops("Shape", required(node, 1)), value=_zero(dtype_of(down.floats))
    )
    shares = ops("ScatterElements", none, chosen, weights, axis=1)  # [tokens, experts]
    shares = ops("Unsqueeze", ops("Transpose", shares, perm=(1, 0)), ops.ints(1))
    summed = ops("ReduceSum", ops("Mul", outputs, shares), ops.ints(0), keepdims=0)
    return ops("Transpose", summed, perm=(1, 0))


def _refuse_unknown(node: ir.Node) -> None:
    known = {"activation_type": "swiglu", "swiglu_fusion": 1, "use_sparse_mixer": 0}
    given = {name: node.attributes[name].value for name in known if name in node.attributes}
    wrong = [f"{name}={value}" for name, value in given.items() if value != known[name]]
    if wrong or "activation_type" not in given or "swiglu_fusion" not in given:
        raise ExportError(
            f"The experts of this model use {node.op_type} with {', '.join(wrong) or 'no SwiGLU'}, "
            f"which the standard dialect does not have; export it with --dialect fused."
        )


def _routing(ops: PlainOps, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The chosen experts and their weights, [tokens, k] int64 and floats."""
    num_chosen = ops.ints(node.attributes["k"].as_int())
    best, chosen = ops.many(2, "TopK", required(node, 1), num_chosen, axis=-1)
    given = optional(node, 14)
    if given is not None:
        return chosen, ops("GatherElements", given, chosen, axis=1)
    is_normalised = "normalize_routing_weights" in node.attributes
    if is_normalised and node.attributes["normalize_routing_weights"].as_int():
        return chosen, ops("Softmax", best, axis=-1)
    return chosen, ops("GatherElements", ops("Softmax", required(node, 1), axis=-1), chosen, axis=1)


def _feed_forward(
    ops: PlainOps,
    node: ir.Node,
    columns: ir.Value,
    chosen: ir.Value | None,
    gate_up: _Product,
    down: _Product,
) -> ir.Value:
    """[experts, hidden, columns] through one expert each: all of them, or the `chosen` ones."""
    projected = gate_up.times(ops, columns, chosen)  # [experts, 2 * inner, columns]
    pairs = ops("Reshape", projected, ops.ints(0, gate_up.num_out // 2, 2, -1))
    sides = ops.many(2, "Split", pairs, ops.ints(1, 1), axis=2)
    gate, up = (ops("Squeeze", side, ops.ints(2)) for side in sides)
    inner = _swiglu(ops, node, gate, up, dtype_of(down.floats))
    return down.times(ops, inner, chosen)


def _swiglu(
    ops: PlainOps, node: ir.Node, gate: ir.Value, up: ir.Value, dtype: ir.DataType
) -> ir.Value:
    """g * sigmoid(alpha * g) * (u + beta), both clamped to the limit where there is one."""
    alpha, beta = (
        node.attributes[name].as_float() if name in node.attributes else neutral
        for name, neutral in (("activation_alpha", 1.0), ("activation_beta", 0.0))
    )
    if "swiglu_limit" in node.attributes:
        limit = node.attributes["swiglu_limit"].as_float()
        gate = ops("Min", gate, ops.scalar(limit, dtype))
        up = ops("Clip", up, ops.scalar(-limit, dtype), ops.scalar(limit, dtype))
    scaled = gate if alpha == 1.0 else ops("Mul", gate, ops.scalar(alpha, dtype))
    shifted = up if beta == 0.0 else ops("Add", up, ops.scalar(beta, dtype))
    return ops("Mul", ops("Mul", gate, ops("Sigmoid", scaled)), shifted)


def _zero(dtype: ir.DataType) -> ir.TensorProtocol:
    return ir.Tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
