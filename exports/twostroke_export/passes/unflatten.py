"""Lets products keep the batch and sequence axes that a model flattened around them."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.linears import Linear, find_linears

_ROWWISE = {
    "Add",
    "Gelu",
    "LayerNormalization",
    "Relu",
    "Sigmoid",
    "SimplifiedLayerNormalization",
    "Tanh",
}


def unflatten(graph: ir.Graph) -> int:
    """Rewrites [batch, sequence, in] -> [rows, in] -> Gemm … -> [batch, sequence, out].

    Between the two reshapes may stand products with constant matrices, sums, norms and unary
    operators; each product becomes a MatMul (and an Add) of three axes, which the other passes
    know. Mutates the graph; returns how many reshapes back were removed.
    """
    linears = {linear.node: linear for linear in find_linears(graph)}
    num_removed = 0
    for end in list(graph):
        if end.op_type != "Reshape" or end.outputs[0].is_graph_output():
            continue
        chain = _chain(end.inputs[0], end.outputs[0], linears)
        if not chain:
            continue
        lifted = _Lifted(graph, end)
        for node in chain:
            lifted.add(node, linears.get(node))
        ir.convenience.replace_all_uses_with(end.outputs[0], lifted.read(end.inputs[0]))
        graph.remove(end, safe=True)
        num_removed += 1
    return num_removed


def _chain(
    value: ir.Value | None, like: ir.Value, linears: dict[ir.Node, Linear]
) -> list[ir.Node] | None:
    """The nodes, in order, between flattened values and `value`; None where one does not fit.

    Each gives rows of its own input's rows, and nobody else reads what it gives.
    """
    node = value.producer() if value is not None else None
    if value is None or node is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    if node not in linears and not _is_rowwise(node):
        return None
    operands = node.inputs[:1] if node in linears else node.inputs
    nodes: list[ir.Node] = []
    for operand in operands:
        if _unflattened(operand, like) is not None or _is_vector(operand):
            continue
        below = _chain(operand, like, linears)
        if below is None:
            return None
        nodes += below
    return [*nodes, node]


def _is_rowwise(node: ir.Node) -> bool:
    axis = node.attributes.get("axis")
    return node.op_type in _ROWWISE and (axis is None or axis.as_int() in (-1, 1))


def _is_vector(value: ir.Value | None) -> bool:
    if value is None or not value.is_initializer():
        return False
    return value.shape is not None and len(value.shape) < 2


def _unflattened(value: ir.Value | None, like: ir.Value) -> ir.Value | None:
    """The [batch, sequence, channels] that `value` [rows, channels] was made of."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.op_type != "Reshape":
        return None
    source = node.inputs[0]
    if source is None or source.shape is None or value.shape is None or like.shape is None:
        return None
    if (len(source.shape), len(value.shape), len(like.shape)) != (3, 2, 3):
        return None
    is_known = all(isinstance(dim, int) or dim.value is not None for dim in like.shape[:2])
    is_same = source.shape[:2] == like.shape[:2] and source.shape[2] == value.shape[1]
    return source if is_known and is_same else None


class _Lifted:
    """What a chain of nodes does, done with three axes: new nodes before `end`."""

    def __init__(self, graph: ir.Graph, end: ir.Node) -> None:
        self.graph, self.end = graph, end
        self.like = end.outputs[0]
        self.made: dict[ir.Value, ir.Value] = {}

    def read(self, value: ir.Value | None) -> ir.Value:
        """What stands for `value` with three axes; a vector stands for itself."""
        assert value is not None  # the chain was checked
        unflattened = self.made.get(value) or _unflattened(value, self.like)
        return value if unflattened is None else unflattened

    def add(self, node: ir.Node, linear: Linear | None) -> None:
        """Adds what `node` (with its constant matrix) does."""
        given = node.outputs[0]
        if linear is None:
            operands = [self.read(value) for value in node.inputs]
            attributes = {key: attribute.value for key, attribute in node.attributes.items()}
            if "axis" in attributes:
                attributes["axis"] = -1
            self.made[given] = self._put(ir.node(node.op_type, operands, attributes), given)
            return
        weight = linear.weight
        if linear.is_out_in:
            turned = ir.node("Transpose", [weight], attributes={"perm": (1, 0)})
            self.graph.insert_before(self.end, turned)
            weight = turned.outputs[0]
        product = self._put(ir.node("MatMul", [self.read(node.inputs[0]), weight]), given)
        if linear.bias is not None:
            product = self._put(ir.node("Add", [product, linear.bias]), given)
        self.made[given] = product

    def _put(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        output = node.outputs[0]
        output.type = self.like.type
        if self.like.shape is not None and flat.shape is not None:
            output.shape = ir.Shape([*self.like.shape.dims[:2], flat.shape[-1]])
        self.graph.insert_before(self.end, node)
        return output
