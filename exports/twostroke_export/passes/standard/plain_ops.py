"""Adds operators of ONNX's own domain to a graph, in front of the node that they will replace."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.linears import constant
from twostroke_export.weights import WeightFile


class PlainOps:
    """Called with an operator's name, its inputs and attributes, answers the output.

    Nodes go in front of `place`, which whoever walks the graph sets. Mutates the graph; tensors
    of some size go into `weights`, where the fused graph's lie already.
    """

    def __init__(self, graph: ir.Graph, weights: WeightFile) -> None:
        self.graph = graph
        self.weights = weights
        self.place: ir.Node | None = None
        self._shared: dict[Hashable, ir.Value] = {}

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Adds an operator of one output."""
        return self.many(1, op_type, *inputs, **attributes)[0]

    def many(
        self, num_outputs: int, op_type: str, *inputs: ir.Value | None, **attributes: Any
    ) -> tuple[ir.Value, ...]:
        """The same for an operator of several outputs."""
        node = ir.node(op_type, list(inputs), attributes=attributes, num_outputs=num_outputs)
        assert self.place is not None  # set by whoever walks the graph
        self.graph.insert_before(self.place, node)
        return tuple(node.outputs)

    def shared(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """The value of `key`, made in front of the first node that asks for it."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def ints(self, *values: int) -> ir.Value:
        """A small int64 constant [len(values)]."""
        name = "_".join(map(str, ("ints", *values)))
        return constant(self.graph, ir.tensor(np.array(values, np.int64), name=name))

    def scalar(self, value: float, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """A constant [] of a type."""
        array = np.array(value, dtype.numpy())
        name = f"scalar_{value!r}_{dtype.name}"
        return constant(self.graph, ir.Tensor(array, dtype=dtype, name=name))

    def cast(self, value: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
        """`value` of the type `source` in the type `target`; itself where they are the same."""
        return value if source == target else self("Cast", value, to=target)

    def input(self, name: str) -> ir.Value:
        """The graph's input of that name; position_ids is declared where it was not yet."""
        for value in self.graph.inputs:
            if value.name == name:
                return value
        assert name == contract.POSITION_IDS, name  # every graph has the others
        ids = self.input(contract.INPUT_IDS)
        made = ir.Value(name=name, shape=ids.shape, type=ids.type)
        self.graph.inputs.insert(1, made)
        return made

    @property
    def is_single_token(self) -> bool:
        """Whether the graph takes one token a sequence (decode)."""
        return bool(dims(self.input(contract.INPUT_IDS))[1] == 1)


def optional(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def required(node: ir.Node, index: int) -> ir.Value:
    """An input that the operator cannot do without."""
    value = node.inputs[index]
    assert value is not None, (node.op_type, index)
    return value


def dtype_of(value: ir.Value) -> ir.DataType:
    """The type of a value that tracing or a pass has typed."""
    assert value.dtype is not None, value.name
    return value.dtype


def floats_of(node: ir.Node) -> ir.DataType:
    """The floats that an operator computes in; tracing leaves some values without a type."""
    known = (value.dtype for value in (*node.outputs, *node.inputs) if value is not None)
    return next((dtype for dtype in known if dtype is not None), ir.DataType.FLOAT)


def dims(value: ir.Value) -> tuple[Any, ...]:
    """The shape of a value that tracing or a pass has shaped; free dimensions by name."""
    assert value.shape is not None, value.name
    return value.shape.dims
