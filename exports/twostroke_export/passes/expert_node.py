"""The node of a trace that stands for a layer's experts: its operands, laid out as asked for.

Its inputs are the states [tokens, hidden], the chosen experts [tokens, k] int64 with their weights
[tokens, k], the two matrices of every expert and, where there are any, their biases; its
attributes say how the matrices are stored and which SwiGLU lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.experts import DOMAIN, OPERATOR

MATRICES = ("gate_up", "down")
_INPUTS = ("states", "chosen", "weights", *MATRICES, *(f"{name}_bias" for name in MATRICES))


@dataclass(frozen=True, slots=True)
class ExpertsNode:
    """A `twostroke::Experts` node, seen by the names of its operands."""

    node: ir.Node

    def operand(self, name: str) -> ir.Value:
        """One of states, chosen, weights, gate_up, down and, with biases, {gate_up, down}_bias."""
        value = self.node.inputs[_INPUTS.index(name)]
        assert value is not None  # the trace gives them all
        return value

    def integer(self, name: str) -> int:
        """An integer attribute."""
        return self.node.attributes[name].as_int()

    @property
    def has_bias(self) -> bool:
        """Whether both products have one."""
        return len(self.node.inputs) > _INPUTS.index("down_bias")

    @property
    def row_lengths(self) -> tuple[int, int]:
        """What one row of gate_up and of down multiplies: hidden and inner."""
        axis = 1 if self.integer("is_transposed") else 2
        return self._stored("gate_up").shape[axis], self._stored("down").shape[axis]

    def rows(self, name: str, expert: int) -> npt.NDArray[Any]:
        """One expert's matrix as [out, in] or its bias as [out]; gate and up in turn."""
        rows = self._stored(name)[expert]
        if rows.ndim == 2 and self.integer("is_transposed"):
            rows = rows.T
        return self._in_turn(rows) if name.startswith("gate_up") else rows

    def stack(self, name: str) -> npt.NDArray[Any]:
        """The `rows` of every expert, [experts, ...]; the model's own array where it lies so."""
        stored, first = self._stored(name), self.rows(name, 0)
        if not self.integer("is_transposed") and np.may_share_memory(first, stored):
            return stored
        stack = np.empty((len(stored), *first.shape), first.dtype)
        for number in range(len(stored)):  # an expert at a time: no second copy of a layer
            stack[number] = self.rows(name, number)
        return stack

    def _in_turn(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[2 * inner, ...] -> the same with the rows gate, up, gate, up …"""
        half = rows.shape[0] // 2
        first, second = (
            (rows[0::2], rows[1::2])
            if self.integer("is_interleaved")
            else (rows[:half], rows[half:])
        )
        pair = (first, second) if self.integer("is_gate_first") else (second, first)
        return np.stack(pair, axis=1).reshape(rows.shape)

    def _stored(self, name: str) -> npt.NDArray[Any]:
        tensor = self.operand(name).const_value
        assert tensor is not None  # parameters of the model
        return tensor.numpy()


def find_experts(graph: ir.Graph) -> list[ExpertsNode]:
    """The experts of every layer, in graph order."""
    return [
        ExpertsNode(node) for node in graph if (node.domain, node.op_type) == (DOMAIN, OPERATOR)
    ]


def find_routers(graph: ir.Graph) -> set[ir.Node]:
    """The products that choose experts: they are small, and what they decide is all or nothing."""
    routers: set[ir.Node] = set()
    seen: set[ir.Node] = set()
    ahead: list[ir.Node | None] = [node for node in graph if node.op_type == "TopK"]
    ahead += [experts.operand("chosen").producer() for experts in find_experts(graph)]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type in ("MatMul", "Gemm"):
            routers.add(node)
        else:
            ahead += [value.producer() for value in node.inputs if value is not None]
    return routers
