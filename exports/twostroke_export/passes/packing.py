"""Packs linear products that read one value into a single product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.passes.linears import MIN_SIDE, Linear, StackedTensor, constant, find_linears


@dataclass(frozen=True, slots=True)
class Branch:
    """A linear product and the value that others read: behind its bias, where it has one.

    bias: [out], whether it is part of the product or added behind it.
    """

    linear: Linear
    bias: ir.Value | None
    output: ir.Value

    @property
    def source(self) -> ir.Value | None:
        """What the product reads, [..., in]."""
        return self.linear.node.inputs[0]


def find_branches(graph: ir.Graph) -> dict[ir.Value, Branch]:
    """Every linear product that may become a part of a larger one, by its output.

    The head (the last one) keeps its bytes, which may be the embedding's, and small matrices
    keep their precision.
    """
    branches = {}
    for linear in find_linears(graph)[:-1]:
        is_packed = isinstance(linear.weight.const_value, StackedTensor)
        branch = _with_bias(linear)
        if not is_packed and min(linear.size) >= MIN_SIDE and not branch.output.is_graph_output():
            branches[branch.output] = branch
    return branches


def _with_bias(linear: Linear) -> Branch:
    output = linear.node.outputs[0]
    readers = [use.node for use in output.uses()]
    if linear.bias is None and len(readers) == 1 and readers[0].op_type == "Add":
        for value in readers[0].inputs:
            if value is not None and _is_vector(value, linear.size[0]):
                return Branch(linear, value, readers[0].outputs[0])
    return Branch(linear, linear.bias, output)


def _is_vector(value: ir.Value, length: int) -> bool:
    tensor = value.const_value
    return value.is_initializer() and tensor is not None and list(tensor.shape) == [length]


def can_pack(branches: Sequence[Branch]) -> bool:
    """Whether one product can take the place of these: one source, all with a bias or none."""
    first = branches[0]
    if len({branch.output for branch in branches}) < len(branches):
        return False
    return all(
        branch.source is first.source
        and branch.linear.weight.dtype == first.linear.weight.dtype
        and (branch.bias is None) == (first.bias is None)
        and (branch.bias is None or _is_vector(branch.bias, branch.linear.size[0]))
        for branch in branches
    )


def packed_product(
    graph: ir.Graph, branches: Sequence[Branch], order: npt.NDArray[np.int64] | None = None
) -> ir.Value:
    """[..., sum of out]: the outputs of `branches` side by side, by one product (and bias).

    `order` [sum of out] says which of these channels comes at each place, if not its own. Adds
    nodes before the first of the branches, which stay until `drop` removes them.
    """
    linears = [branch.linear for branch in branches]
    flags = [linear.is_out_in for linear in linears]
    turned = ir.node(
        "Transpose",
        [_stacked(graph, [linear.weight for linear in linears], flags, order)],
        attributes={"perm": (1, 0)},
    )
    nodes = [turned, ir.node("MatMul", [branches[0].source, turned.outputs[0]])]
    biases = [branch.bias for branch in branches if branch.bias is not None]
    if biases:
        bias = _stacked(graph, biases, [True] * len(biases), order)
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], bias]))
    for node in nodes[1:]:
        _describe(node.outputs[0], branches[0].output, sum(linear.size[0] for linear in linears))
    old = {linear.node for linear in linears}
    graph.insert_before(next(node for node in graph if node in old), nodes)
    return nodes[-1].outputs[0]


def split(graph: ir.Graph, packed: ir.Value, branches: Sequence[Branch]) -> None:
    """Gives the readers of each branch their part of `packed`, and drops the branches."""
    widths = [branch.linear.size[0] for branch in branches]
    sizes = constant(
        graph, ir.tensor(np.array(widths), name="_".join(map(str, ("split", *widths))))
    )
    node = ir.node("Split", [packed, sizes], attributes={"axis": -1}, num_outputs=len(branches))
    producer = packed.producer()
    assert producer is not None  # a product
    graph.insert_after(producer, node)
    for part, branch, width in zip(node.outputs, branches, widths, strict=True):
        _describe(part, branch.output, width)
        ir.convenience.replace_all_uses_with(branch.output, part)
    drop(graph, branches)


def drop(graph: ir.Graph, branches: Sequence[Branch]) -> None:
    """Removes the nodes of branches that nobody reads any more."""
    unread = [branch.output.producer() for branch in branches]
    while unread:
        node = unread.pop()
        if node is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        unread += [value.producer() for value in node.inputs if value is not None]
        if node.graph is graph:
            graph.remove(node, safe=True)


def _describe(value: ir.Value, like: ir.Value, width: int) -> None:
    value.type = like.type
    if like.shape is not None:
        value.shape = ir.Shape([*like.shape.dims[:-1], width])


def _stacked(
    graph: ir.Graph,
    parts: Sequence[ir.Value],
    are_out_in: Sequence[bool],
    order: npt.NDArray[np.int64] | None,
) -> ir.Value:
    name = "+".join(part.name or "" for part in parts)
    if order is not None:
        name = f"{name}/sorted"  # a parameter has one order at most
    return constant(graph, StackedTensor(parts, are_out_in, name, order))
