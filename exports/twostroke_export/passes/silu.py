"""Writes SiLU and its like as the one operator that ONNX Runtime would fuse them into at load."""

from __future__ import annotations

import onnx_ir as ir


def fuse_silu(graph: ir.Graph) -> int:
    """Turns x * Sigmoid(alpha * x) into `com.microsoft::QuickGelu`; SiLU has the alpha 1.

    Mutates the graph; returns how many were fused.
    """
    num_fused = 0
    for sigmoid in list(graph):
        if sigmoid.op_type != "Sigmoid" or sigmoid.inputs[0] is None:
            continue
        product = _lone_reader(sigmoid)
        source, alpha = _scaled(sigmoid.inputs[0])
        if product is None or product.op_type != "Mul" or product.outputs[0].is_graph_output():
            continue
        if {id(value) for value in product.inputs} != {id(source), id(sigmoid.outputs[0])}:
            continue
        fused = ir.node("QuickGelu", [source], attributes={"alpha": alpha}, domain="com.microsoft")
        scaling = sigmoid.inputs[0].producer() if sigmoid.inputs[0] is not source else None
        _replace(graph, [node for node in (product, sigmoid, scaling) if node is not None], fused)
        num_fused += 1
    if num_fused:
        graph.opset_imports.setdefault("com.microsoft", 1)
    return num_fused


def _lone_reader(node: ir.Node) -> ir.Node | None:
    output = node.outputs[0]
    readers = [use.node for use in output.uses()]
    return readers[0] if len(readers) == 1 and not output.is_graph_output() else None


def _scaled(value: ir.Value) -> tuple[ir.Value, float]:
    """x and alpha where `value` is x times a stored number that nothing else reads."""
    scaling = value.producer()
    if scaling is None or scaling.op_type != "Mul" or _lone_reader(scaling) is None:
        return value, 1.0
    for source, factor in (scaling.inputs, reversed(scaling.inputs)):
        stored = factor.const_value if factor is not None else None
        if source is not None and stored is not None and stored.size == 1:
            return source, float(stored.numpy().reshape(()))
    return value, 1.0


def _replace(graph: ir.Graph, old: list[ir.Node], fused: ir.Node) -> None:
    """Puts `fused` in the place of nodes, the last of them first."""
    output, like = fused.outputs[0], old[0].outputs[0]
    output.shape, output.type, output.name = like.shape, like.type, like.name
    graph.insert_before(old[0], fused)
    ir.convenience.replace_all_uses_with(like, output)
    graph.remove(old, safe=True)
