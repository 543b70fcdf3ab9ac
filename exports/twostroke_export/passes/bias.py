"""Fuses the addition of a bias with the operator before or behind it that has an input for one."""

from __future__ import annotations

import onnx_ir as ir

DOMAIN = "com.microsoft"
_PRODUCT_BIAS = 5  # the place of MatMulNBits' bias
_SKIP_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}


def fuse_bias(graph: ir.Graph) -> int:
    """Fuses every addition of a bias that one of the three functions below can.

    Mutates the graph; returns how many additions were fused.
    """
    return fuse_product_bias(graph) + fuse_gelu_bias(graph) + fuse_skip_bias(graph)


def fuse_product_bias(graph: ir.Graph) -> int:
    """Hands the vector that is added to a quantised product to MatMulNBits; see `fuse_bias`."""
    num_fused = 0
    for add in list(graph):
        terms = _terms(add)
        product = terms[0].producer() if terms is not None else None
        if terms is None or product is None or product.op_type != "MatMulNBits":
            continue
        output, total = product.outputs[0], add.outputs[0]
        if len(output.uses()) != 1 or not _take_bias(product, _PRODUCT_BIAS, terms[1]):
            continue
        ir.convenience.replace_all_uses_with(total, output, replace_graph_outputs=True)
        output.shape, output.type, output.name = total.shape, total.type, total.name
        graph.remove(add, safe=True)
        num_fused += 1
    return num_fused


def fuse_gelu_bias(graph: ir.Graph) -> int:
    """Turns Add + Gelu into BiasGelu, or FastGelu for the tanh approximation; see `fuse_bias`."""
    num_fused = 0
    for gelu in list(graph):
        add = _lone_producer(gelu.inputs[0]) if gelu.op_type == "Gelu" else None
        terms = _terms(add) if add is not None else None
        if add is None or terms is None:
            continue
        approximation = gelu.attributes.get("approximate")
        is_fast = approximation is not None and approximation.as_string() == "tanh"
        fused = ir.node("FastGelu" if is_fast else "BiasGelu", list(terms), domain=DOMAIN)
        output, like = fused.outputs[0], gelu.outputs[0]
        output.shape, output.type, output.name = like.shape, like.type, like.name
        graph.insert_before(gelu, fused)
        ir.convenience.replace_all_uses_with(like, output, replace_graph_outputs=True)
        graph.remove([gelu, add], safe=True)
        graph.opset_imports.setdefault(DOMAIN, 1)
        num_fused += 1
    return num_fused


def fuse_skip_bias(graph: ir.Graph) -> int:
    """Hands the bias of either term of a fused residual sum to its norm; see `fuse_bias`."""
    num_fused = 0
    for norm in graph:
        if norm.op_type not in _SKIP_BIAS:
            continue
        for index, value in enumerate(norm.inputs[:2]):
            add = _lone_producer(value)
            terms = _terms(add) if add is not None else None
            if add is None or terms is None:
                continue
            if _take_bias(norm, _SKIP_BIAS[norm.op_type], terms[1]):
                norm.replace_input_with(index, terms[0])
                graph.remove(add, safe=True)
                num_fused += 1
    return num_fused


def _take_bias(node: ir.Node, place: int, bias: ir.Value) -> bool:
    """Puts the bias into the node's input `place`; False where another one is there."""
    if len(node.inputs) > place and node.inputs[place] is not None:
        return False
    node.resize_inputs(max(place + 1, len(node.inputs)))
    node.replace_input_with(place, bias)
    return True


def _lone_producer(value: ir.Value | None) -> ir.Node | None:
    """The node that made `value`, where nobody else reads it."""
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    return value.producer()


def _terms(add: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The data and the stored vector of an addition [..., channels] + [channels]."""
    shape = add.outputs[0].shape
    if add.op_type != "Add" or shape is None or not len(shape):
        return None
    left, right = add.inputs
    for data, bias in ((left, right), (right, left)):
        if data is None or bias is None or not bias.is_initializer() or data.is_initializer():
            continue
        if bias.const_value is not None and list(bias.const_value.shape) == [shape[-1]]:
            return data, bias
    return None
