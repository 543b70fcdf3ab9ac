"""Writes SiLU as the one operator that ONNX Runtime would fuse it into at load."""

from __future__ import annotations

import onnx_ir as ir


def fuse_silu(graph: ir.Graph) -> int:
    """Turns x * Sigmoid(x) into `com.microsoft::QuickGelu` with alpha 1.

    QuickGelu is x * sigmoid(alpha * x). Mutates the graph; returns how many were fused.
    """
    num_fused = 0
    for sigmoid in list(graph):
        product = _product(sigmoid)
        if product is None or product.outputs[0].is_graph_output():
            continue
        _fuse(graph, sigmoid, product)
        num_fused += 1
    if num_fused:
        graph.opset_imports.setdefault("com.microsoft", 1)
    return num_fused


def _product(sigmoid: ir.Node) -> ir.Node | None:
    """The product of a sigmoid with its own input, where nothing else reads the sigmoid."""
    if sigmoid.op_type != "Sigmoid" or sigmoid.outputs[0].is_graph_output():
        return None
    readers = [use.node for use in sigmoid.outputs[0].uses()]
    if len(readers) != 1 or readers[0].op_type != "Mul":
        return None
    factors = list(readers[0].inputs)
    return readers[0] if sorted(map(id, factors)) == _pair(sigmoid) else None


def _pair(sigmoid: ir.Node) -> list[int]:
    return sorted((id(sigmoid.inputs[0]), id(sigmoid.outputs[0])))


def _fuse(graph: ir.Graph, sigmoid: ir.Node, product: ir.Node) -> None:
    fused = ir.node(
        "QuickGelu", [sigmoid.inputs[0]], attributes={"alpha": 1.0}, domain="com.microsoft"
    )
    output, like = fused.outputs[0], product.outputs[0]
    output.shape, output.type, output.name = like.shape, like.type, like.name
    graph.insert_before(product, fused)
    ir.convenience.replace_all_uses_with(like, output)
    graph.remove([product, sigmoid], safe=True)
