"""Writes the target of a Reshape as a constant, so that no node computes it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from twostroke_export.passes.linears import constant

_KEEP, _REST = 0, -1  # "as in the input", "whatever is left", in Reshape's own terms


def fix_reshapes(graph: ir.Graph) -> int:
    """Gives every Reshape whose output shape is known, up to one free size, a constant target.

    A free size that stands at the same place of the input is kept by reference. Mutates the graph;
    the nodes that computed the old targets stay. Returns how many were rewritten.
    """
    num_fixed = 0
    for node in graph:
        if node.op_type != "Reshape" or _is_constant(node.inputs[1]):
            continue
        target = _target(node.inputs[0], node.outputs[0])
        if target is None:
            continue
        name = "_".join(map(str, ("shape", *target)))
        node.replace_input_with(1, constant(graph, ir.tensor(np.array(target), name=name)))
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
        num_fixed += 1
    return num_fixed


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def _target(source: ir.Value | None, output: ir.Value) -> list[int] | None:
    """The shape operand that gives `output` its shape; None where two free sizes move."""
    if source is None or source.shape is None or output.shape is None:
        return None
    target: list[int] = []
    for index, dim in enumerate(output.shape):
        if isinstance(dim, int):
            target.append(dim)
        elif dim.value is not None and index < len(source.shape) and source.shape[index] == dim:
            target.append(_KEEP)
        else:
            target.append(_REST)
    is_clear = target.count(_REST) <= 1 and 0 not in output.shape.dims
    return target if is_clear else None
