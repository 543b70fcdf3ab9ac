"""Finds the products with constant matrices, and helps to put others in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

_TRACED_PREFIX = "model."  # the module that is traced holds the model under this name
MIN_SIDE = 32  # smaller matrices (routers) stay as they are: they cost nothing and lose most


class StackedTensor(ir.LazyTensor):
    """Matrices [out, in] above one another, or vectors [out] in a row, in an order of their own.

    Made anew whenever it is read, so that no copy of the weights stays in memory.
    """

    __slots__ = ("order", "parts")

    def __init__(
        self,
        parts: Sequence[ir.Value],
        are_out_in: Sequence[bool],
        name: str,
        order: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """`parts` are initializers; a matrix is stored [in, out] where its flag is False.

        `order` gives for each row of the result the row of the stack that it is.
        """
        self.parts = tuple(parts)
        self.order = order

        def stack() -> ir.TensorProtocol:
            arrays = [_stored(part) for part in parts]
            turned = [a if flag else a.T for a, flag in zip(arrays, are_out_in, strict=True)]
            stacked = np.concatenate(turned)
            return ir.tensor(stacked if order is None else stacked[order], name=name)

        shapes = [
            _stored(part).shape[:: 1 if flag else -1]
            for part, flag in zip(parts, are_out_in, strict=True)
        ]
        num_rows = sum(shape[0] for shape in shapes)
        dtype = ir.DataType.from_numpy(_stored(parts[0]).dtype)
        super().__init__(stack, dtype, ir.Shape((num_rows, *shapes[0][1:])), name=name)


def _stored(value: ir.Value) -> npt.NDArray[Any]:
    assert value.const_value is not None  # only initializers are asked for
    return value.const_value.numpy()


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with a constant matrix: x @ W, where W is stored [in, out] or [out, in]."""

    node: ir.Node
    weight: ir.Value
    is_out_in: bool
    bias: ir.Value | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Outputs and inputs."""
        tensor = self.weight.const_value
        assert tensor is not None  # find_linears only takes initializers
        rows, columns = map(int, tensor.shape)  # type: ignore[arg-type]  # static dims
        return (rows, columns) if self.is_out_in else (columns, rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameter's name in the torch model; of a packed matrix those of its parts."""
        tensor = self.weight.const_value
        parts = tensor.parts if isinstance(tensor, StackedTensor) else (self.weight,)
        return tuple(map(parameter_name, parts))

    def matrix(self) -> npt.NDArray[Any]:
        """The weight as [out, in]; a view where it is stored so."""
        stored = _stored(self.weight)
        return stored if self.is_out_in else stored.T


def find_linears(graph: ir.Graph) -> list[Linear]:
    """Every MatMul or Gemm whose second operand is a constant matrix, in graph order."""
    found = []
    for node in graph:
        if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
            continue
        operand = node.inputs[1]
        is_out_in = node.op_type == "Gemm" and _flag(node, "transB")
        producer = operand.producer() if operand is not None else None
        if producer is not None and producer.op_type == "Transpose":
            operand, is_out_in = producer.inputs[0], not is_out_in
        if operand is None or not operand.is_initializer() or operand.const_value is None:
            continue
        if len(operand.const_value.shape) != 2 or not _is_plain(node):
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        found.append(Linear(node, operand, is_out_in, bias))
    return found


def _is_plain(node: ir.Node) -> bool:
    if node.op_type == "MatMul":
        return True
    scales = [
        node.attributes[name].as_float() for name in ("alpha", "beta") if name in node.attributes
    ]
    return not _flag(node, "transA") and all(scale == 1.0 for scale in scales)


def _flag(node: ir.Node, name: str) -> bool:
    return name in node.attributes and bool(node.attributes[name].as_int())


def parameter_name(value: ir.Value) -> str:
    """The name that a parameter has in the torch model."""
    return (value.name or "").removeprefix(_TRACED_PREFIX)


def parameter_key(value: ir.Value, kind: str) -> tuple[Any, ...]:
    """One key for one parameter, in whichever graph and under whichever name it appears."""
    tensor = value.const_value
    assert tensor is not None  # only initializers are asked for
    if isinstance(tensor, StackedTensor):
        order = () if tensor.order is None else tuple(map(int, tensor.order))
        return (tuple(parameter_key(part, "") for part in tensor.parts), order, kind)
    raw = getattr(tensor, "raw", tensor)
    pointer = raw.data_ptr() if hasattr(raw, "data_ptr") else id(raw)
    return (pointer, tuple(map(int, tensor.shape)), kind)  # type: ignore[arg-type]  # static dims


def replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Puts `new` (one output) in the place of `old`, under the old output's name. Mutates."""
    output, like = new.outputs[0], old.outputs[0]
    output.shape, output.type, output.name = like.shape, like.type, like.name
    graph.insert_before(old, new)
    ir.convenience.replace_all_uses_with(like, output, replace_graph_outputs=True)
    graph.remove(old, safe=True)


def constant(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """The graph's initializer for a stored tensor; made the first time it is asked for."""
    name = tensor.name or ""
    if name not in graph.initializers:
        value = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape),  # type: ignore[arg-type]  # static dims
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        graph.initializers[name] = value
    return graph.initializers[name]
