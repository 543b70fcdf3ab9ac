"""Finds channels that can be rescaled: a producer whose every reader is a constant matrix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
import torch

from twostroke_export.passes.linears import Linear, find_linears, parameter_key

_NORMS = {  # operator: which inputs scale with its output
    "SimplifiedLayerNormalization": (1,),
    "SkipSimplifiedLayerNormalization": (2,),
    "LayerNormalization": (1, 2),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter by its address; a matrix is stored [out, in] or [in, out]."""

    pointer: int
    is_out_in: bool = True


@dataclass(frozen=True, slots=True)
class Channels:
    """`producers` make channels [produced] that the matrices `readers` take as inputs [in].

    Attention repeats each value head for `num_groups` query heads: then in = heads * head_dim,
    laid out [value heads, groups, head_dim]; elsewhere in equals produced.
    """

    producers: tuple[Parameter, ...]
    readers: tuple[Parameter, ...]
    num_groups: int = 1
    head_dim: int = 1

    @property
    def pointers(self) -> list[int]:
        """The addresses of every parameter concerned."""
        return [parameter.pointer for parameter in (*self.producers, *self.readers)]

    def share(self, values: torch.Tensor, how: Literal["mean", "amax"]) -> torch.Tensor:
        """[in] -> [produced]: what the readers see of each produced channel, together."""
        if self.num_groups == 1:
            return values
        grouped = values.reshape(-1, self.num_groups, self.head_dim)
        shared: torch.Tensor = grouped.mean(1) if how == "mean" else grouped.amax(1)
        return shared.reshape(-1)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[produced] -> [in]."""
        if self.num_groups == 1:
            return values
        grouped = values.reshape(-1, 1, self.head_dim)
        return grouped.expand(-1, self.num_groups, -1).reshape(-1)


def find_channels(graph: ir.Graph) -> list[Channels]:
    """Every place of the graph where a rescaling can be folded into the producer.

    A matrix that is used twice (a tied head) is left out on both sides.
    """
    linears = find_linears(graph)
    uses = Counter(_pointer(linear.weight) for linear in linears)
    uses.update(
        _pointer(table)
        for node in graph
        if node.op_type == "Gather" and (table := node.inputs[0]) is not None and _is_stored(table)
    )
    by_node = {linear.node: linear for linear in linears if uses[_pointer(linear.weight)] == 1}
    places = [_behind_norm(node, by_node) for node in graph if node.op_type in _NORMS]
    for linear in by_node.values():
        source = _origin(linear.node.inputs[0])
        if source is not None and source.op_type == "Mul":
            places.append(_behind_gate(source, linear, by_node))
        elif source is not None and source.op_type == "GroupQueryAttention":
            places.append(_behind_attention(source, linear, by_node))
    return [place for place in places if place is not None]


def _behind_norm(norm: ir.Node, by_node: dict[ir.Node, Linear]) -> Channels | None:
    gains = [norm.inputs[index] for index in _NORMS[norm.op_type] if index < len(norm.inputs)]
    if any(gain is None or not _is_stored(gain) or len(gain.uses()) != 1 for gain in gains):
        return None
    readers = _readers(norm.outputs[0], by_node)
    if not readers:
        return None
    return Channels(tuple(Parameter(_pointer(gain)) for gain in gains if gain), readers)


def _behind_gate(gate: ir.Node, reader: Linear, by_node: dict[ir.Node, Linear]) -> Channels | None:
    """up(x) * act(gate(x)): the factor goes into the up projection."""
    if len(gate.outputs[0].uses()) != 1:
        return None
    for value in gate.inputs:
        up = by_node.get(value.producer()) if value is not None else None  # type: ignore[arg-type]  # None is no key
        if up is not None and len(up.node.outputs[0].uses()) == 1:
            return Channels(_producers(up), (_parameter(reader),))
    return None


def _behind_attention(
    attention: ir.Node, reader: Linear, by_node: dict[ir.Node, Linear]
) -> Channels | None:
    if len(attention.outputs[0].uses()) != 1:
        return None
    source = _origin(attention.inputs[2])
    value = by_node.get(source) if source is not None else None
    if value is None or len(value.node.outputs[0].uses()) != 1:
        return None
    num_heads = attention.attributes["num_heads"].as_int()
    num_kv_heads = attention.attributes["kv_num_heads"].as_int()
    head_dim = reader.matrix().shape[1] // num_heads
    if value.matrix().shape[0] != num_kv_heads * head_dim:
        return None
    return Channels(_producers(value), (_parameter(reader),), num_heads // num_kv_heads, head_dim)


def _readers(value: ir.Value, by_node: dict[ir.Node, Linear]) -> tuple[Parameter, ...]:
    """The matrices that read `value`; empty where anything else does too."""
    if value.is_graph_output():
        return ()
    readers = [by_node.get(use.node) for use in value.uses()]
    if any(reader is None for reader in readers):
        return ()
    return tuple(_parameter(reader) for reader in readers if reader is not None)


def _producers(linear: Linear) -> tuple[Parameter, ...]:
    if linear.bias is None:
        return (_parameter(linear),)
    return (_parameter(linear), Parameter(_pointer(linear.bias)))


def _parameter(linear: Linear) -> Parameter:
    return Parameter(_pointer(linear.weight), linear.is_out_in)


def _origin(value: ir.Value | None) -> ir.Node | None:
    """The node behind reshapes that nobody else reads."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type == "Reshape" and len(node.outputs[0].uses()) == 1:
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return node


def _is_stored(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None


def _pointer(value: ir.Value) -> int:
    """The address of a stored parameter; 0 for what is not stored."""
    return int(parameter_key(value, "")[0]) if _is_stored(value) else 0
