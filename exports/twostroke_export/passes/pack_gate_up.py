"""Packs projections of one size that read one value, as gate and up do, into one product."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.packing import Branch, can_pack, find_branches, packed_product, split


def pack_gate_up(graph: ir.Graph) -> int:
    """One product and a Split for all products of one size that read one value.

    Mutates the graph; returns how many products were packed into others.
    """
    groups: dict[tuple[ir.Value | None, int], list[Branch]] = {}
    for branch in find_branches(graph).values():
        groups.setdefault((branch.source, branch.linear.size[0]), []).append(branch)
    num_packed = 0
    for group in groups.values():
        if len(group) > 1 and can_pack(group):
            split(graph, packed_product(graph, group), group)
            num_packed += len(group)
    return num_packed
