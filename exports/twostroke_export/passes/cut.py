"""Cuts a graph between two layers, so that each half can run on a device of its own.

The hidden states cross the cut: one tensor, or two where a residual and the output of a block are
added on the other side. What depends on sizes and positions alone (masks, angles) is computed on
both sides instead of being handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from twostroke.bundle import contract
from twostroke.errors import ExportError

CROSSING = "hidden.{}"
"""Names of what crosses, an output of the front and an input of the back."""

_SIZES = frozenset({"Shape", "Size"})


def cut(model: ir.Model, num_front_layers: int, num_layers: int) -> tuple[ir.Model, ir.Model]:
    """The first layers with the embedding, and the others with the head, as graphs of their own.

    `model` stays as it is; the halves refer to the same external data.

    Raises:
        ExportError: there is no such layer, or no place where only hidden states would cross.
    """
    if not 0 < num_front_layers < num_layers:
        raise ExportError(
            f"a model of {num_layers} layers can be cut behind the first 1 to {num_layers - 1}, "
            f"not {num_front_layers}."
        )
    whole = model.clone()
    crossing = _narrowest(whole.graph, num_front_layers, num_layers)
    for number, value in enumerate(crossing):
        value.name = CROSSING.format(number)
    fronts, backs = range(num_front_layers), range(num_front_layers, num_layers)
    front = _half(whole, (), [*crossing, *_presents(whole.graph, fronts)])
    _measure_own_cache(whole.graph, num_front_layers)
    logits = _named(whole.graph.outputs, [contract.LOGITS])
    back = _half(whole, crossing, [*logits, *_presents(whole.graph, backs)])
    return front, back


def _narrowest(graph: ir.Graph, num_front_layers: int, num_layers: int) -> list[ir.Value]:
    """The hidden states at the place between two layers where the fewest numbers cross."""
    nodes = _hidden_nodes(graph)
    past = {name: layer for layer in range(num_layers) for name in contract.past_names(layer)}
    layers = [
        [past[v.name] for v in node.inputs if v is not None and v.name in past] for node in nodes
    ]
    first = max(at for at, found in enumerate(layers) if any(n < num_front_layers for n in found))
    last = min(at for at, found in enumerate(layers) if any(n >= num_front_layers for n in found))
    best: tuple[int, list[ir.Value]] | None = None
    for at in range(first + 1, last + 1):
        crossing = _live(nodes, at)
        width = _width(graph, crossing)
        if width is not None and (best is None or width < best[0]):
            best = width, crossing
    if best is None:
        raise ExportError(
            f"the graph has no place behind its first {num_front_layers} layers where nothing but "
            "hidden states [batch, sequence, width] would cross, so it cannot be cut there."
        )
    return best[1]


def _hidden_nodes(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that compute with token ids, in order; not those that look at sizes alone."""
    ids = next(value for value in graph.inputs if value.name == contract.INPUT_IDS)
    hidden: set[ir.Value] = {ids}
    nodes = []
    for node in graph:
        if node.op_type not in _SIZES and not hidden.isdisjoint(_read(node)):
            nodes.append(node)
            hidden.update(node.outputs)
    return nodes


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, its inner graphs included."""
    for inner in (node, *_inner(node)):
        yield from (value for value in inner.inputs if value is not None)


def _inner(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield inner
                yield from _inner(inner)


def _live(nodes: Sequence[ir.Node], at: int) -> list[ir.Value]:
    """What nodes before `at` make and nodes from `at` on read."""
    made = {value for node in nodes[:at] for value in node.outputs}
    read = dict.fromkeys(value for node in nodes[at:] for value in _read(node))
    return [value for value in read if value in made]


def _width(graph: ir.Graph, values: Iterable[ir.Value]) -> int | None:
    """Numbers a token that cross; None where something else than hidden states would.

    Mutates values whose shape is known but for the names of its free dimensions.
    """
    ids = next(value for value in graph.inputs if value.name == contract.INPUT_IDS)
    assert ids.shape is not None
    total = 0
    for value in values:
        shape = value.shape
        if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
            return None
        total += shape[2]
        value.shape = ir.Shape([ids.shape[0], ids.shape[1], shape[2]])
    return total


def _measure_own_cache(graph: ir.Graph, num_front_layers: int) -> None:
    """Has sizes read from a layer that the back holds. Mutates the graph.

    Every layer holds the same tokens, so the lengths are equal.
    """
    own = _named(graph.inputs, contract.past_names(num_front_layers))
    for layer in range(num_front_layers):
        for value, instead in zip(
            _named(graph.inputs, contract.past_names(layer)), own, strict=True
        ):
            for node, index in list(value.uses()):
                if node.op_type in _SIZES:
                    node.replace_input_with(index, instead)


def _presents(graph: ir.Graph, layers: Iterable[int]) -> list[ir.Value]:
    return _named(
        graph.outputs, [name for layer in layers for name in contract.present_names(layer)]
    )


def _named(values: Iterable[ir.Value], names: Sequence[str]) -> list[ir.Value]:
    by_name = {value.name: value for value in values}
    return [by_name[name] for name in names if name in by_name]


def _half(model: ir.Model, crossing: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
    """The part of the graph between `crossing` (none: its inputs) and `outputs`."""
    graph = ir.convenience.extract(model.graph, [*crossing, *model.graph.inputs], outputs)
    for value in list(graph.inputs):
        if not value.uses():
            graph.inputs.remove(value)
    half = ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name)
    common.RemoveUnusedOpsetsPass()(half)
    return half
