"""Attention that reads query, key and value packed, where the model makes them so."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.pack_qkv import takes_packed
from twostroke_export.passes.pieces import whole_of


def feed_packed(graph: ir.Graph) -> int:
    """Hands GroupQueryAttention the whole of which its q, k and v are the parts, in order.

    Mutates the graph; the nodes that parted it stay. Returns how many attentions were changed.
    """
    num_fed = 0
    for attention in graph:
        if attention.op_type != "GroupQueryAttention" or None in attention.inputs[:3]:
            continue
        sides = attention.inputs[:3]
        packed = whole_of(sides)
        if packed is None or not takes_packed(attention, [_width(side) for side in sides]):
            continue
        for index, value in enumerate((packed, None, None)):
            attention.replace_input_with(index, value)
        num_fed += 1
    return num_fed


def _width(value: ir.Value | None) -> int:
    last = value.shape[-1] if value is not None and value.shape is not None else None
    assert isinstance(last, int)  # a piece has a known width
    return last
