"""Values that are a part of another one: what a Slice or a Split takes of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Piece:
    """Channels [start, end) of `source`, along its last axis."""

    source: ir.Value
    start: int
    end: int


def whole_of(values: Sequence[ir.Value | None]) -> ir.Value | None:
    """The value whose last axis these cover side by side, in order and without a gap."""
    pieces = [_piece(value) for value in values]
    first = pieces[0]
    if first is None:
        return None
    reached = 0
    for piece in pieces:
        if piece is None or piece.source is not first.source or piece.start != reached:
            return None
        reached = piece.end
    return first.source if reached == _width(first.source) else None


def _piece(value: ir.Value | None) -> Piece | None:
    node = value.producer() if value is not None else None
    source = node.inputs[0] if node is not None else None
    if value is None or node is None or source is None:
        return None
    if node.op_type == "Split":
        return _split_piece(value, node, source)
    return _slice_piece(node, source) if node.op_type == "Slice" else None


def _split_piece(value: ir.Value, node: ir.Node, source: ir.Value) -> Piece | None:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    widths = [_width(output) for output in node.outputs]
    if not _is_last(axis, source) or None in widths:
        return None
    index = node.outputs.index(value)
    start = sum(width for width in widths[:index] if width is not None)
    return Piece(source, start, start + (widths[index] or 0))


def _slice_piece(node: ir.Node, source: ir.Value) -> Piece | None:
    if len(node.inputs) < 4:  # without axes it slices the first ones
        return None
    starts, ends, axes = (_numbers(value) for value in node.inputs[1:4])
    steps = _numbers(node.inputs[4]) if len(node.inputs) > 4 else [1]
    width = _width(source)
    if width is None or not len(starts) == len(ends) == len(axes) == 1 or steps != [1]:
        return None
    if not _is_last(axes[0], source):
        return None
    start, end = (
        min(width, bound if bound >= 0 else max(0, width + bound)) for bound in (starts[0], ends[0])
    )
    return Piece(source, start, end) if start < end else None


def _numbers(value: ir.Value | None) -> list[int]:
    if value is None or value.const_value is None:
        return []
    return [int(number) for number in value.const_value.numpy().reshape(-1)]


def _is_last(axis: int, value: ir.Value) -> bool:
    return axis == -1 or (value.shape is not None and axis == len(value.shape) - 1)


def _width(value: ir.Value) -> int | None:
    last = value.shape[-1] if value.shape is not None and len(value.shape) else None
    return last if isinstance(last, int) else None
