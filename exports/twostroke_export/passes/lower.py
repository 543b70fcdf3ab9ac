"""Lowers constant matrix products and the embedding to the operators of a precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.expert_node import find_routers
from twostroke_export.passes.experts import lower_experts
from twostroke_export.passes.linears import (
    MIN_SIDE,
    Linear,
    constant,
    find_linears,
    parameter_key,
    replace,
)
from twostroke_export.quantise import BLOCK_SIZE, QuantisedMatrix, quantise
from twostroke_export.weights import WeightFile

ACCURACY_LEVEL = 4  # int8 activations inside the CPU kernels; level 0 is many times slower
DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Bits:
    """How many bits the layers, the head and the embedding are quantised to; None: floats."""

    layers: int | None
    head: int | None


PRECISIONS = {
    "fp32": Bits(None, None),
    "fp16": Bits(None, None),
    "int8": Bits(8, 8),
    "int4": Bits(4, 8),  # an int8 head costs little and keeps most of the quality
}


def lower(graph: ir.Graph, precision: str, weights: WeightFile) -> None:
    """Rewrites linear products, experts and the embedding for `precision`. Mutates the graph."""
    bits = PRECISIONS[precision]
    linears, routers = find_linears(graph), find_routers(graph)
    lower_experts(graph, bits.layers, weights, block_size=BLOCK_SIZE, accuracy_level=ACCURACY_LEVEL)
    embeddings = {
        parameter_key(table, ""): node
        for node in graph
        if node.op_type == "Gather" and (table := _embedding_table(node)) is not None
    }
    for linear in linears:
        is_head = linear is linears[-1]
        wanted = bits.head if is_head else bits.layers
        is_small = min(linear.size) < MIN_SIDE or linear.node in routers
        if wanted is not None and not is_small:
            _quantised(graph, linear, wanted, weights)
        elif parameter_key(linear.weight, "") in embeddings:
            _sharing(graph, linear)
        elif linear.is_out_in and linear.node.op_type == "MatMul":
            _transposed(graph, linear, weights)
    if bits.head is not None:
        for node in embeddings.values():
            _quantised_embedding(graph, node, bits.head, weights)
    graph.opset_imports.setdefault(DOMAIN, 1)


def _embedding_table(node: ir.Node) -> ir.Value | None:
    """The table that a Gather reads by the input ids themselves; None for other gathers."""
    table, ids = node.inputs[0], node.inputs[1]
    if table is None or not table.is_initializer() or table.const_value is None:
        return None
    return table if ids is not None and ids.name == contract.INPUT_IDS else None


def _quantised(graph: ir.Graph, linear: Linear, bits: int, weights: WeightFile) -> None:
    num_out, num_in = linear.matrix().shape
    product = ir.node(
        "MatMulNBits",
        [linear.node.inputs[0], *_stored(graph, linear.weight, linear.matrix, bits, weights)],
        attributes={
            "K": num_in,
            "N": num_out,
            "bits": bits,
            "block_size": BLOCK_SIZE,
            "accuracy_level": ACCURACY_LEVEL,
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
    bits: int,
    weights: WeightFile,
) -> list[ir.Value]:
    """The initializers of a quantised matrix: values, scales and, for 4 bits, zero points."""
    made: list[QuantisedMatrix] = []

    def part(name: str) -> npt.NDArray[Any]:
        if not made:
            made.append(quantise(matrix().astype(np.float32, copy=False), bits))
        array: npt.NDArray[Any] = getattr(made[0], name)
        return array

    names = ("values", "scales", "zero_points") if bits == 4 else ("values", "scales")
    tensors = [
        weights.once(parameter_key(weight, f"{name}{bits}"), functools.partial(part, name))
        for name in names
    ]
    return [constant(graph, tensor) for tensor in tensors]


def _quantised_embedding(graph: ir.Graph, node: ir.Node, bits: int, weights: WeightFile) -> None:
    """Gather -> GatherBlockQuantized over the very bytes of a tied head."""
    table, ids = _embedding_table(node), node.inputs[1]
    if table is None or table.const_value is None:
        return
    rows, columns = table.const_value.numpy().shape
    if columns % BLOCK_SIZE:
        return
    values, scales = _stored(graph, table, table.const_value.numpy, bits, weights)
    flat = weights.reshaped(values.const_value, (rows, columns))
    gathered = ir.node(
        "GatherBlockQuantized",
        [constant(graph, flat), ids, scales],
        attributes={"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK_SIZE, "bits": bits},
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
