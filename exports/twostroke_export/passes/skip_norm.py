"""Fuses a residual addition with the norm that follows it."""

from __future__ import annotations

import onnx_ir as ir

_FUSED = {
    "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
    "LayerNormalization": "SkipLayerNormalization",
}


def fuse_skip_norm(graph: ir.Graph) -> int:
    """Turns Add + norm into SkipSimplifiedLayerNormalization or SkipLayerNormalization.

    The fused operator gives both the norm and the sum, so the sum's other readers stay served.
    Mutates the graph; returns how many pairs were fused.
    """
    num_fused = 0
    for norm in list(graph):
        if norm.op_type not in _FUSED or not _is_over_channels(norm):
            continue
        total, weights = norm.inputs[0], norm.inputs[1:]
        add = total.producer() if total is not None else None
        if add is None or total in graph.outputs or not _is_residual(add):
            continue
        if not weights or any(w is not None and w.producer() is not None for w in weights):
            continue
        _fuse(graph, add, norm)
        num_fused += 1
    if num_fused:
        graph.opset_imports.setdefault("com.microsoft", 1)
    return num_fused


def _is_over_channels(norm: ir.Node) -> bool:
    axis = norm.attributes["axis"].as_int() if "axis" in norm.attributes else -1
    shape = norm.inputs[0].shape if norm.inputs[0] is not None else None
    return shape is not None and axis in (-1, len(shape) - 1) and len(norm.outputs) == 1


def _is_residual(add: ir.Node) -> bool:
    """An addition of two tensors [batch, sequence, channels] of one shape."""
    left, right = add.inputs[0], add.inputs[1] if len(add.inputs) > 1 else None
    if add.op_type != "Add" or left is None or right is None:
        return False
    if left.shape is None or right.shape is None or len(left.shape) != 3:
        return False
    return list(left.shape) == list(right.shape) and not left.is_initializer()


def _fuse(graph: ir.Graph, add: ir.Node, norm: ir.Node) -> None:
    fused = ir.node(
        _FUSED[norm.op_type],
        [add.inputs[0], add.inputs[1], *norm.inputs[1:]],
        attributes={"epsilon": norm.attributes["epsilon"].as_float()},
        domain="com.microsoft",
        num_outputs=4,
    )
    normed, mean, inverse, total = fused.outputs
    mean.name = inverse.name = ""  # optional outputs that nobody reads
    for output, like in ((normed, norm.outputs[0]), (total, add.outputs[0])):
        output.shape, output.type, output.name = like.shape, like.type, like.name
    graph.insert_before(add, fused)
    ir.convenience.replace_all_uses_with(norm.outputs[0], normed)
    ir.convenience.replace_all_uses_with(add.outputs[0], total)
    graph.remove([norm, add], safe=True)
