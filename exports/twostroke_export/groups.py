"""The matrices of a graph's layers, in the groups that share a number of bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from twostroke_export.passes.expert_node import MATRICES, ExpertsNode, find_experts, find_routers
from twostroke_export.passes.linears import MIN_SIDE, find_linears, parameter_name
from twostroke_export.quantise import Blocks


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter by its name in the torch model, stored [out, in] or [in, out].

    That of experts is stored [experts, out, in] or [experts, in, out]; `num_out` counts all rows.
    """

    name: str
    num_out: int
    num_in: int
    is_out_in: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that become one product (q, k and v, or gate and up), or one that stays alone."""

    matrices: tuple[Matrix, ...]

    def num_bytes(self, blocks: Blocks) -> int:
        """What the group takes in the weights file."""
        return sum(blocks.num_bytes(one.num_out, one.num_in) for one in self.matrices)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in the torch model."""
        return tuple(matrix.name for matrix in self.matrices)

    @property
    def label(self) -> str:
        """E.g. `model.layers.0.self_attn.q_proj+k_proj+v_proj`."""
        names = [matrix.name.removesuffix(".weight") for matrix in self.matrices]
        return "+".join([names[0], *(name.rpartition(".")[2] for name in names[1:])])


def find_groups(graph: ir.Graph, pack: Callable[[ir.Graph], None]) -> list[Group]:
    """The groups that `pack` makes of the layers' matrices, in graph order; the head is in none.

    Mutates `graph`: give it a clone. A matrix that several layers use counts once. The experts of
    a layer are one group; what chooses them belongs to none.
    """
    singles = {
        linear.names[0]: Matrix(linear.names[0], *linear.size, linear.is_out_in)
        for linear in find_linears(graph)[:-1]
    }
    groups = {group.names: group for group in map(_of_experts, find_experts(graph))}
    routers = find_routers(graph)
    pack(graph)
    for linear in find_linears(graph)[:-1]:
        is_known = all(name in singles for name in linear.names)
        if min(linear.size) >= MIN_SIDE and is_known and linear.node not in routers:
            groups[linear.names] = Group(tuple(singles[name] for name in linear.names))
    return list(groups.values())


def _of_experts(experts: ExpertsNode) -> Group:
    is_out_in = not experts.integer("is_transposed")
    matrices = []
    for name in MATRICES:
        value = experts.operand(name)
        assert value.const_value is not None  # a parameter of the model
        num_experts, *sides = value.const_value.numpy().shape
        num_out, num_in = sides if is_out_in else sides[::-1]
        matrices.append(Matrix(parameter_name(value), num_experts * num_out, num_in, is_out_in))
    return Group(tuple(matrices))
