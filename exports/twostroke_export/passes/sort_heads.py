"""Sorts the channels of a projection that holds query, key and value head by head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.passes.linears import constant
from twostroke_export.passes.packing import Branch, drop, find_branches, packed_product


def sort_heads(graph: ir.Graph) -> int:
    """Rewrites product -> [heads, parts] -> Split -> [channels] as product -> Split.

    The rows of the matrix are put in the order in which the parts are read, so that no view is
    left between the product and its parts. Mutates the graph; returns how many were sorted.
    """
    branches = find_branches(graph)
    num_sorted = 0
    for node in list(graph):
        view = node.inputs[0].producer() if node.op_type == "Split" and node.inputs[0] else None
        branch = branches.get(view.inputs[0]) if view is not None and view.inputs[0] else None
        if view is None or branch is None or not _is_by_head(view, node, branch):
            continue
        _sort(graph, node, branch)
        num_sorted += 1
    return num_sorted


def _is_by_head(view: ir.Node, split: ir.Node, branch: Branch) -> bool:
    """[..., channels] -> [..., heads, width] -> parts of the width -> [..., heads * part]."""
    shape, whole = view.outputs[0].shape, branch.output.shape
    if view.op_type != "Reshape" or shape is None or whole is None:
        return False
    if len(shape) != len(whole) + 1 or shape[:-2] != whole[:-1]:
        return False
    if len(branch.output.uses()) > 1 or len(view.outputs[0].uses()) > 1:
        return False
    axis = split.attributes["axis"].as_int() if "axis" in split.attributes else 0
    if axis not in (-1, len(shape) - 1):
        return False
    heads = shape[-2]
    for part in split.outputs:
        readers = [use.node for use in part.uses()]
        if len(readers) != 1 or readers[0].op_type != "Reshape" or part.shape is None:
            return False
        flat, width = readers[0].outputs[0], part.shape[-1]
        if not isinstance(heads, int) or not isinstance(width, int) or flat.is_graph_output():
            return False
        if flat.shape is None or list(flat.shape) != [*whole[:-1], heads * width]:
            return False
    return True


def _sort(graph: ir.Graph, node: ir.Node, branch: Branch) -> None:
    flats = [next(iter(part.uses())).node.outputs[0] for part in node.outputs]
    product = packed_product(graph, [branch], _order(node))
    widths = np.array([flat.shape[-1] for flat in flats if flat.shape is not None])
    sizes = constant(graph, ir.tensor(widths, name="_".join(map(str, ("split", *widths)))))
    parted = ir.node("Split", [product, sizes], attributes={"axis": -1}, num_outputs=len(flats))
    producer = product.producer()
    assert producer is not None  # a product
    graph.insert_after(producer, parted)
    for new, old in zip(parted.outputs, flats, strict=True):
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new)
    for old in flats:
        reshape = old.producer()
        if reshape is not None:
            graph.remove(reshape, safe=True)
    view = node.inputs[0].producer() if node.inputs[0] is not None else None
    graph.remove([node, *([view] if view is not None else [])], safe=True)
    drop(graph, [branch])


def _order(split: ir.Node) -> npt.NDArray[np.int64]:
    """The channels of the product in the order of the parts: all of the first, then the next."""
    shape = split.inputs[0].shape if split.inputs[0] is not None else None
    assert shape is not None  # checked by _is_by_head
    heads, width = (int(dim) for dim in shape[-2:])  # type: ignore[arg-type]  # static dims
    channels = np.arange(heads * width).reshape(heads, width)
    ends = np.cumsum([part.shape[-1] for part in split.outputs if part.shape is not None])
    return np.concatenate([part.reshape(-1) for part in np.split(channels, ends[:-1], axis=1)])
