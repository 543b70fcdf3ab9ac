"""Moves transposes behind what works on each row alone, where they meet others and cancel."""

from __future__ import annotations

import onnx_ir as ir

_ROWWISE = {"LayerNormalization", "SimplifiedLayerNormalization", "Clip", "Split"}


def sink_transposes(graph: ir.Graph) -> int:
    """Turns Transpose, norm into norm, Transpose where the last axis stays the last.

    Families that norm or part their heads after turning them around leave a pair of transposes
    that only this keeps apart. Mutates the graph; returns how many were moved.
    """
    num_moved = 0
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        below = source.producer() if source is not None else None
        if below is None or not _is_rowwise(node) or not _keeps_rows(below):
            continue
        _swap(graph, below, node)
        num_moved += 1
    return num_moved


def _is_rowwise(node: ir.Node) -> bool:
    if node.op_type not in _ROWWISE or any(value.is_graph_output() for value in node.outputs):
        return False
    shape, axis = node.outputs[0].shape, node.attributes.get("axis")
    if shape is None or (axis is None and node.op_type == "Split"):
        return False
    return axis is None or axis.as_int() in (-1, len(shape) - 1)


def _keeps_rows(node: ir.Node) -> bool:
    if node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    perm = node.attributes["perm"].as_ints()
    is_lone = len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output()
    return is_lone and perm[-1] == len(perm) - 1


def _swap(graph: ir.Graph, transpose: ir.Node, node: ir.Node) -> None:
    """x -> transpose -> node becomes x -> node -> transpose, for each output of the node."""
    source = transpose.inputs[0]
    assert source is not None  # a Transpose has an input
    perm = transpose.attributes["perm"].as_ints()
    for output in node.outputs:
        readers = list(output.uses())
        turned = ir.node("Transpose", [output], attributes={"perm": perm})
        turned.outputs[0].type, turned.outputs[0].shape = output.type, output.shape
        graph.insert_after(node, turned)
        for reader in readers:
            reader.node.replace_input_with(reader.idx, turned.outputs[0])
        if output.shape is not None:
            output.shape = ir.Shape([output.shape[perm.index(axis)] for axis in range(len(perm))])
    node.replace_input_with(0, source)
    graph.remove(transpose, safe=True)
