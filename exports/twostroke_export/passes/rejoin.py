"""Removes a Concat that puts together again what was taken apart."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.pieces import whole_of


def rejoin(graph: ir.Graph) -> int:
    """Reads the whole where a Concat joins all pieces of one value's last axis in order.

    Families that rotate a part of each head do so; once attention rotates, the parts are as they
    were. Mutates the graph; the slices stay. Returns how many were removed.
    """
    num_removed = 0
    for node in list(graph):
        if node.op_type != "Concat" or node.outputs[0].is_graph_output():
            continue
        whole = whole_of(node.inputs) if _joins_last_axis(node) else None
        if whole is None:
            continue
        ir.convenience.replace_all_uses_with(node.outputs[0], whole)
        graph.remove(node, safe=True)
        num_removed += 1
    return num_removed


def _joins_last_axis(node: ir.Node) -> bool:
    axis, shape = node.attributes["axis"].as_int(), node.outputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)
