"""Lowers constant matrix products and the embedding to the operators of a precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.expert_node import find_routers
from twostroke_export.passes.experts import lower_experts
from twostroke_export.passes.gathered_experts import lower_gathered_experts
from twostroke_export.passes.linears import (
    MIN_SIDE,
    Linear,
    constant,
    find_linears,
    parameter_key,
    replace,
)
from twostroke_export.precision import Lowering
from twostroke_export.quantise import Blocks, QuantisedMatrix, quantise
from twostroke_export.weights import WeightFile

DOMAIN = "com.microsoft"


def lower(graph: ir.Graph, lowering: Lowering, weights: WeightFile) -> None:
    """Rewrites linear products, experts and the embedding as `lowering` says. Mutates the graph."""
    linears, routers = find_linears(graph), find_routers(graph)
    lower_experts(graph, lowering, weights)
    lower_gathered_experts(graph, lowering, weights)
    embeddings = {
        parameter_key(table, ""): node
        for node in graph
        if node.op_type == "Gather" and (table := _embedding_table(node)) is not None
    }
    for linear in linears:
        bits = lowering.head if linear is linears[-1] else _layer_bits(linear, lowering)
        is_small = min(linear.size) < MIN_SIDE or linear.node in routers
        if bits is not None and not is_small:
            _quantised(graph, linear, lowering, bits, weights)
        elif parameter_key(linear.weight, "") in embeddings:
            _sharing(graph, linear)
        elif linear.is_out_in and linear.node.op_type == "MatMul":
            _transposed(graph, linear, weights)
    if lowering.head is not None:
        for node in embeddings.values():
            _quantised_embedding(graph, node, lowering.blocks(lowering.head), weights)
    graph.opset_imports.setdefault(DOMAIN, 1)


def _layer_bits(linear: Linear, lowering: Lowering) -> int | None:
    """The bits of a matrix; the parts of a packed one get what the most demanding of them asks."""
    wanted = [lowering.layers(name) for name in linear.names]
    bits = [number for number in wanted if number is not None]
    return max(bits) if len(bits) == len(wanted) else None


def _embedding_table(node: ir.Node) -> ir.Value | None:
    """The table that a Gather reads by the input ids themselves; None for other gathers."""
    table, ids = node.inputs[0], node.inputs[1]
    if table is None or not table.is_initializer() or table.const_value is None:
        return None
    return table if ids is not None and ids.name == contract.INPUT_IDS else None


def _quantised(
    graph: ir.Graph, linear: Linear, lowering: Lowering, bits: int, weights: WeightFile
) -> None:
    num_out, num_in = linear.size
    blocks = lowering.blocks(bits)
    # The parts of a packed matrix read the same value.
    importance = lowering.importance.get(linear.names[0])
    stored = _stored(graph, linear.weight, linear.matrix, blocks, weights, importance)
    product = ir.node(
        "MatMulNBits",
        [linear.node.inputs[0], *stored],
        attributes={
            "K": num_in,
            "N": num_out,
            "bits": blocks.bits,
            "block_size": blocks.size,
            "accuracy_level": lowering.accuracy_level,
        },
        domain=DOMAIN,
    )
    if linear.bias is None:
        replace(graph, linear.node, product)
        return
    product.outputs[0].shape = linear.node.outputs[0].shape
    product.outputs[0].type = linear.node.outputs[0].type
    graph.insert_before(linear.node, product)
    replace(graph, linear.node, ir.node("Add", [product.outputs[0], linear.bias]))


def _stored(
    graph: ir.Graph,
    weight: ir.Value,
    matrix: Callable[[], npt.NDArray[Any]],
    blocks: Blocks,
    weights: WeightFile,
    importance: npt.NDArray[np.float32] | None = None,
) -> list[ir.Value]:
    """The initializers of a quantised matrix: values, scales and zero points where it has some."""
    made: list[QuantisedMatrix] = []

    def part(name: str) -> npt.NDArray[Any]:
        if not made:
            made.append(quantise(matrix().astype(np.float32, copy=False), blocks, importance))
        array: npt.NDArray[Any] = getattr(made[0], name)
        return array

    names = ("values", "scales", *(() if blocks.is_symmetric else ("zero_points",)))
    tensors = [
        weights.once(parameter_key(weight, f"{name} of {blocks}"), functools.partial(part, name))
        for name in names
    ]
    return [constant(graph, tensor) for tensor in tensors]


def _quantised_embedding(
    graph: ir.Graph, node: ir.Node, blocks: Blocks, weights: WeightFile
) -> None:
    """Gather -> GatherBlockQuantized over the very bytes of a tied head.

    Left as it is where the columns do not make whole blocks, which the operator wants.
    """
    table, ids = _embedding_table(node), node.inputs[1]
    if table is None or table.const_value is None:
        return
    rows, columns = table.const_value.numpy().shape
    if columns % blocks.size:
        return
    values, *rest = _stored(graph, table, table.const_value.numpy, blocks, weights)
    flat = weights.reshaped(values.const_value, (rows, columns * blocks.bits // 8))
    gathered = ir.node(
        "GatherBlockQuantized",
        [constant(graph, flat), ids, *rest],
        attributes={
            "gather_axis": 0,
            "quantize_axis": 1,
            "block_size": blocks.size,
            "bits": blocks.bits,
        },
        domain=DOMAIN,
    )
    replace(graph, node, gathered)


def _sharing(graph: ir.Graph, linear: Linear) -> None:
    """A float head over the embedding's own bytes: x @ W^T, without a transposed copy."""
    if not linear.is_out_in or linear.node.op_type != "MatMul":
        return
    product = ir.node(
        "FusedMatMul",
        [linear.node.inputs[0], linear.weight],
        attributes={"transB": 1},
        domain=DOMAIN,
    )
    replace(graph, linear.node, product)


def _transposed(graph: ir.Graph, linear: Linear, weights: WeightFile) -> None:
    """Stores W^T, so that no session transposes it at load or at each step."""
    tensor = weights.once(
        parameter_key(linear.weight, "transposed"),
        lambda: np.ascontiguousarray(linear.matrix().T),
    )
    product = ir.node("MatMul", [linear.node.inputs[0], constant(graph, tensor)])
    replace(graph, linear.node, product)
