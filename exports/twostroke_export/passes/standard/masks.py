"""The causal mask of a standard graph, from the sizes of its inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from twostroke.bundle import contract
from twostroke_export.passes.standard.plain_ops import PlainOps

_LOWEST = float(np.finfo(np.float32).min)  # minus infinity would give NaN where it is subtracted


def causal_mask(ops: PlainOps, past: ir.Value, window: int, num_groups: int = 1) -> ir.Value | None:
    """What is added to the scores, [groups * sequence, total] float32: 0 or the lowest number.

    past: a layer's past keys [batch, kv_heads, past, head_dim]; window: how many keys up to its
    own a query sees, -1 for all; num_groups: how often the queries lie above one another. None
    where nothing is hidden: one token that sees all. Of one token a single row is answered, for all
    groups. Made once for each window.
    """
    if ops.is_single_token and window < 0:
        return None
    mask = ops.shared(("mask", window), lambda: _mask(ops, past, window))
    if ops.is_single_token or num_groups == 1:
        return mask
    above = [mask] * num_groups
    return ops.shared(("mask", window, num_groups), lambda: ops("Concat", *above, axis=0))


def _mask(ops: PlainOps, past: ir.Value, window: int) -> ir.Value:
    num_past = ops.shared("num_past", lambda: _size(ops, past, 2))
    num_total = ops.shared(
        "num_total", lambda: ops("Add", num_past, _size(ops, ops.input(contract.INPUT_IDS), 1))
    )
    one = ops.scalar(1, ir.DataType.INT64)
    queries = ops("Unsqueeze", ops("Range", num_past, num_total, one), ops.ints(1))
    keys = ops("Range", ops.scalar(0, ir.DataType.INT64), num_total, one)  # [total]
    is_seen = ops("LessOrEqual", keys, queries)  # [sequence, total]
    if window >= 0:
        oldest = ops("Sub", queries, ops.scalar(window, ir.DataType.INT64))
        is_seen = ops("And", is_seen, ops("Greater", keys, oldest))
    return ops("Where", is_seen, ops.scalar(0.0), ops.scalar(_LOWEST))


def _size(ops: PlainOps, value: ir.Value, axis: int) -> ir.Value:
    """The length of an axis, [] int64."""
    return ops("Squeeze", ops("Shape", value, start=axis, end=axis + 1), ops.ints(0))
