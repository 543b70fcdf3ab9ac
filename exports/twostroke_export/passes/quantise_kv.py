"""Makes the attention operators of a graph keep their cache in int8."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

_PAST, _PRESENT = (3, 4), (1, 2)  # inputs and outputs of GroupQueryAttention
_SCALES = 12  # the first of two inputs


def quantise_kv(
    graph: ir.Graph, scales: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
) -> None:
    """Gives each GroupQueryAttention the scales of its layer and turns its cache into int8.

    `scales` has keys' and values' [1, kv_heads, 1, head_dim] for each layer. Mutates the graph.
    """
    for node in graph:
        if node.op_type != "GroupQueryAttention":
            continue
        layer = _layer_of(node)
        for index in _PAST:
            _turn(node.inputs[index])
        for index in _PRESENT:
            _turn(node.outputs[index])
        node.resize_inputs(_SCALES + 2)
        for side, array in enumerate(scales[layer]):
            name = f"kv_scales.{layer}.{('key', 'value')[side]}"
            value = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(ir.DataType.FLOAT),
                const_value=ir.tensor(array, name=name),
            )
            graph.initializers[name] = value
            node.replace_input_with(_SCALES + side, value)
        for name, setting in (("k_quant_type", "PER_CHANNEL"), ("v_quant_type", "PER_CHANNEL")):
            node.attributes[name] = ir.AttrString(name, setting)
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)


def _layer_of(node: ir.Node) -> int:
    past = node.inputs[_PAST[0]]
    assert past is not None  # the traced attention has a cache
    assert past.name is not None
    return int(past.name.split(".")[1])  # past_key_values.{layer}.key


def _turn(value: ir.Value | None) -> None:
    assert value is not None
    value.type = ir.TensorType(ir.DataType.INT8)
