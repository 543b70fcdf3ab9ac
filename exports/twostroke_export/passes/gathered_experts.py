"""Quantises the matrices of experts that no single operator computes.

Their weights are parameters [experts, rows, columns]: decode gathers from them, prefill multiplies
them whole. Both come to read them through `com.microsoft::GatherBlockQuantized`, which makes floats
of those experts that it is asked for, so that a step touches the bytes of active experts only.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.expert_weights import store_blocks
from twostroke_export.passes.linears import constant, parameter_name, replace
from twostroke_export.precision import Lowering
from twostroke_export.quantise import BLOCK_SIZES, Blocks
from twostroke_export.weights import WeightFile

_DOMAIN = "com.microsoft"
log = logging.getLogger(__name__)
_EVERY = "every_expert_of_"  # begins the names of ids that leave out none


def lower_gathered_experts(graph: ir.Graph, lowering: Lowering, weights: WeightFile) -> int:
    """Rewrites every gather from experts' matrices, and every product with all of them.

    Mutates the graph; returns how many parameters were quantised. Those whose columns no block
    cuts evenly stay floats.
    """
    num_quantised = 0
    for parameter in list(graph.initializers.values()):
        readers = _readers(parameter)
        blocks = _blocks(parameter, lowering) if readers else None
        if blocks is None:
            continue
        for node in readers:
            _rewrite(graph, node, parameter, blocks, weights)
        num_quantised += 1
    if num_quantised:
        graph.opset_imports.setdefault(_DOMAIN, 1)
    return num_quantised


def names_every_expert(ids: ir.Value) -> bool:
    """Whether the ids of a gather are those of all experts in order."""
    return (ids.name or "").startswith(_EVERY)


def _readers(parameter: ir.Value) -> list[ir.Node]:
    """The gathers and products that read a stack of matrices; none where anything else does."""
    tensor = parameter.const_value
    if tensor is None or len(tensor.shape) != 3 or not tensor.dtype.is_floating_point():
        return []
    readers = [use.node for use in parameter.uses()]
    is_known = all(
        node.op_type == "MatMul" or (node.op_type == "Gather" and _axis(node) == 0)
        for node in readers
    )
    return readers if is_known else []


def _axis(gather: ir.Node) -> int:
    return gather.attributes["axis"].as_int() if "axis" in gather.attributes else 0


def _blocks(parameter: ir.Value, lowering: Lowering) -> Blocks | None:
    bits = lowering.layers(parameter_name(parameter))
    if bits is None:
        return None
    blocks, num_columns = lowering.blocks(bits), _stored(parameter).shape[-1]
    fitting = [n for n in BLOCK_SIZES if n <= blocks.size and num_columns % n == 0]
    if fitting:
        return dataclasses.replace(blocks, size=max(fitting))
    log.warning(
        "%s stays floats: no block of %d to %d columns cuts its rows of %d evenly",
        *(parameter_name(parameter), BLOCK_SIZES[0], blocks.size, num_columns),
    )
    return None


def _rewrite(
    graph: ir.Graph, node: ir.Node, parameter: ir.Value, blocks: Blocks, weights: WeightFile
) -> None:
    stack = _stored(parameter)
    values, *rest = store_blocks(
        graph, parameter, lambda number: stack[number], len(stack), blocks, weights
    )
    chosen = node.inputs[1] if node.op_type == "Gather" else _every(graph, len(stack))
    gathered = ir.node(
        "GatherBlockQuantized",
        [values, chosen, *rest],
        attributes={
            "gather_axis": 0,
            "quantize_axis": 2,
            "block_size": blocks.size,
            "bits": blocks.bits,
        },
        domain=_DOMAIN,
    )
    if node.op_type == "Gather":
        replace(graph, node, gathered)
        return
    gathered.outputs[0].type = parameter.type
    gathered.outputs[0].shape = parameter.shape
    graph.insert_before(node, gathered)
    for index, value in enumerate(node.inputs):
        if value is parameter:
            node.replace_input_with(index, gathered.outputs[0])


def _every(graph: ir.Graph, num_experts: int) -> ir.Value:
    """[experts] int64: 0, 1, 2 …, in a way that no session can fold.

    Folding would keep the floats of every expert in memory, for which nobody asked.
    """
    name = f"{_EVERY}{num_experts}"
    found = [node for node in graph if node.outputs[0].name == name]
    if found:
        return found[0].outputs[0]
    ids = next(value for value in graph.inputs if value.name == contract.INPUT_IDS)
    zero = constant(graph, ir.tensor(np.array([0]), name="no_expert"))
    numbers = constant(graph, ir.tensor(np.arange(num_experts), name=f"experts_{num_experts}"))
    batch = ir.node("Shape", [ids], attributes={"start": 0, "end": 1})  # [1]
    nothing = ir.node("Mul", [batch.outputs[0], zero])  # [1]
    total = ir.node("Add", [nothing.outputs[0], numbers])  # [experts]
    total.outputs[0].name = name
    graph.insert_before(graph[0], [batch, nothing, total])
    return total.outputs[0]


def _stored(parameter: ir.Value) -> npt.NDArray[Any]:
    assert parameter.const_value is not None  # `_readers` only takes parameters
    return parameter.const_value.numpy()
