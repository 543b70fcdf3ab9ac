"""Folds a number that scales the query into the attention's own scale."""

from __future__ import annotations

import onnx_ir as ir


def fold_query_scale(graph: ir.Graph) -> int:
    """Drops the product of the query with one stored number; attention's scale takes it over.

    Mutates the graph; returns how many were folded.
    """
    num_folded = 0
    for attention in list(graph):
        query = attention.inputs[0] if attention.op_type == "GroupQueryAttention" else None
        scaling = query.producer() if query is not None else None
        if query is None or scaling is None or len(query.uses()) > 1:
            continue
        if scaling.op_type != "Mul" or query.is_graph_output():
            continue
        for source, factor in (scaling.inputs, reversed(scaling.inputs)):
            stored = factor.const_value if factor is not None else None
            if source is None or stored is None or stored.size != 1:
                continue
            scale = attention.attributes["scale"].as_float() * float(stored.numpy().reshape(()))
            attention.attributes["scale"] = ir.AttrFloat32("scale", scale)
            attention.replace_input_with(0, source)
            graph.remove(scaling, safe=True)
            num_folded += 1
            break
    return num_folded
