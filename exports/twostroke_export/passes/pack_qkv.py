"""Packs the query, key and value projections of an attention into one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from twostroke_export.passes.packing import (
    Branch,
    can_pack,
    drop,
    find_branches,
    packed_product,
    split,
)

_ROWWISE = {  # what may stand between a projection and attention: its data is the first input
    "Reshape",
    "Transpose",
    "Clip",
    "RotaryEmbedding",
    "LayerNormalization",
    "SimplifiedLayerNormalization",
}
_FIRST_OPTIONAL_INPUT = 9  # of GroupQueryAttention, behind the rotary caches


def pack_qkv(graph: ir.Graph) -> int:
    """One product for q, k and v of each GroupQueryAttention whose projections read one value.

    Attention reads the packed value itself where nothing stands between them; elsewhere a Split
    parts it. Mutates the graph; returns how many attentions were packed.
    """
    branches = find_branches(graph)
    num_packed = 0
    for attention in list(graph):
        if attention.op_type != "GroupQueryAttention":
            continue
        found = [_behind(value, branches) for value in attention.inputs[:3]]
        sides = [branch for branch in found if branch is not None]
        if len(sides) < 3 or not can_pack(sides):
            continue
        packed = packed_product(graph, sides)
        if _reads_directly(attention, sides):
            for index, value in enumerate((packed, None, None)):
                attention.replace_input_with(index, value)
            drop(graph, sides)
        else:
            split(graph, packed, sides)
        num_packed += 1
    return num_packed


def _behind(value: ir.Value | None, branches: Mapping[ir.Value, Branch]) -> Branch | None:
    """The projection that `value` is made of, head by head."""
    while value is not None and value not in branches:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _ROWWISE else None
    return branches[value] if value is not None else None


def _reads_directly(attention: ir.Node, sides: list[Branch]) -> bool:
    """Whether nothing stands between the projections and attention, and it can take them packed."""
    is_between = any(
        value is not side.output or len(side.output.uses()) > 1
        for value, side in zip(attention.inputs[:3], sides, strict=True)
    )
    return not is_between and takes_packed(attention, [side.linear.size[0] for side in sides])


def takes_packed(attention: ir.Node, widths: Sequence[int]) -> bool:
    """Whether GroupQueryAttention can take q, k and v of these widths as one input.

    They must have heads of one size, and the CPU's kernel then takes no optional input.
    """
    if any(value is not None for value in attention.inputs[_FIRST_OPTIONAL_INPUT:]):
        return False
    query, key, value = widths
    head_dim = query // attention.attributes["num_heads"].as_int()
    return key == value == head_dim * attention.attributes["kv_num_heads"].as_int()
