"""GroupQueryAttention in plain operators, over a cache that grows by concatenation.

past [batch, kv_heads, past, head_dim] and the new keys give present [batch, kv_heads, total,
head_dim]. The causal mask comes from the sizes alone, which is right for rows of equal length; the
softmax is computed in float32.

Where several query heads share a key head, the queries of a key head lie above one another,
[batch, kv_heads, groups * sequence, head_dim], and so does their mask: keys and values are read
where they are, and compilers still see what they know as attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from twostroke.errors import ExportError
from twostroke_export.passes.standard.masks import causal_mask
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, dtype_of, optional, required
from twostroke_export.passes.standard.rotation import Rotation

_FLOAT = ir.DataType.FLOAT
_SINK_INPUT = 11
_KNOWN_INPUTS = {*range(9), _SINK_INPUT}
_NEUTRAL = {  # attributes, and the value with which each changes nothing
    "do_rotary": 0,
    "rotary_interleaved": 0,
    "local_window_size": -1,
    "softcap": 0.0,
    "smooth_softmax": 0,
    "kv_cache_bit_width": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}
_KNOWN = ("do_rotary", "rotary_interleaved", "local_window_size", "softcap")


@dataclass(frozen=True, slots=True)
class _Heads:
    """The geometry of one attention, and the type that it computes in."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: ir.DataType

    @property
    def num_groups(self) -> int:
        """Query heads of each key head."""
        return self.num_heads // self.num_kv_heads


def plain_attention(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """The attended states [batch, sequence, heads * head_dim], present key and present value.

    Raises:
        ExportError: the operator was asked for something that is not written out here.
    """
    _refuse_unknown(node)
    heads = _geometry(node)
    query, key, value = (_by_heads(ops, *part, heads.head_dim) for part in _parts(ops, node, heads))
    scale = 1.0 / math.sqrt(heads.head_dim)
    if "scale" in node.attributes:
        scale = node.attributes["scale"].as_float()
    if _attribute(node, "do_rotary"):
        is_interleaved = bool(_attribute(node, "rotary_interleaved"))
        rotation = Rotation(required(node, 7), required(node, 8), is_interleaved)
        query = rotation.apply(ops, query, heads.head_dim, scale)
        key = rotation.apply(ops, key, heads.head_dim)
    else:
        query = ops("Mul", query, ops.scalar(scale, heads.dtype))
    keys = ops("Concat", required(node, 3), key, axis=2)  # [batch, kv_heads, total, head_dim]
    values = ops("Concat", required(node, 4), value, axis=2)
    if heads.num_groups > 1:
        query = ops("Reshape", query, ops.ints(0, heads.num_kv_heads, -1, heads.head_dim))
    scores = _scores(ops, node, heads, query, keys)
    weights = _softmax(ops, heads, scores, optional(node, _SINK_INPUT))
    attended = ops("MatMul", weights, values)  # [batch, kv_heads, groups * sequence, head_dim]
    return [_together(ops, heads, attended), keys, values]


def _refuse_unknown(node: ir.Node) -> None:
    unknown = [
        name
        for name, neutral in _NEUTRAL.items()
        if name not in _KNOWN and _attribute(node, name) != neutral
    ]
    given = {index for index, value in enumerate(node.inputs) if value is not None}
    unknown += [f"input {index}" for index in sorted(given - _KNOWN_INPUTS)]
    if unknown:
        raise ExportError(
            f"The attention of this model uses {unknown[0]} of GroupQueryAttention, which the "
            f"standard dialect does not have; export it with --dialect fused."
        )


def _attribute(node: ir.Node, name: str) -> int | float | str:
    value = node.attributes[name].value if name in node.attributes else _NEUTRAL[name]
    assert isinstance(value, int | float | str)
    return value


def _geometry(node: ir.Node) -> _Heads:
    past = required(node, 3)
    return _Heads(
        node.attributes["num_heads"].as_int(),
        node.attributes["kv_num_heads"].as_int(),
        int(dims(past)[3]),
        dtype_of(past),
    )


def _parts(ops: PlainOps, node: ir.Node, heads: _Heads) -> list[tuple[ir.Value, int]]:
    """Query, key and value, [batch, sequence, heads * head_dim] each, with their heads."""
    counts = (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    if optional(node, 1) is None:  # they come packed
        sizes = ops.ints(*(count * heads.head_dim for count in counts))
        return list(
            zip(ops.many(3, "Split", required(node, 0), sizes, axis=-1), counts, strict=True)
        )
    return [(required(node, index), count) for index, count in enumerate(counts)]


def _by_heads(ops: PlainOps, states: ir.Value, num_heads: int, head_dim: int) -> ir.Value:
    """[batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim]."""
    if ops.is_single_token:
        return ops("Reshape", states, ops.ints(0, num_heads, 1, head_dim))
    split = ops("Reshape", states, ops.ints(0, 0, num_heads, head_dim))
    return ops("Transpose", split, perm=(0, 2, 1, 3))


def _together(ops: PlainOps, heads: _Heads, attended: ir.Value) -> ir.Value:
    """[batch, kv_heads, groups * sequence, head_dim] -> [batch, sequence, heads * head_dim]."""
    width = heads.num_heads * heads.head_dim
    if ops.is_single_token:
        return ops("Reshape", attended, ops.ints(0, 1, width))
    if heads.num_groups > 1:
        attended = ops("Reshape", attended, ops.ints(0, heads.num_heads, -1, heads.head_dim))
    turned = ops("Transpose", attended, perm=(0, 2, 1, 3))
    return ops("Reshape", turned, ops.ints(0, 0, width))


def _scores(
    ops: PlainOps, node: ir.Node, heads: _Heads, query: ir.Value, keys: ir.Value
) -> ir.Value:
    """Capped and masked, of scaled queries: [batch, kv_heads, groups * sequence, total] float32."""
    scores = ops("MatMul", query, ops("Transpose", keys, perm=(0, 1, 3, 2)))
    scores = ops.cast(scores, heads.dtype, _FLOAT)
    cap = float(_attribute(node, "softcap"))
    if cap:
        limit = ops.scalar(cap)
        scores = ops("Mul", ops("Tanh", ops("Div", scores, limit)), limit)
    window = int(_attribute(node, "local_window_size"))
    mask = causal_mask(ops, required(node, 3), window, heads.num_groups)
    return scores if mask is None else ops("Add", scores, mask)


def _softmax(ops: PlainOps, heads: _Heads, scores: ir.Value, sinks: ir.Value | None) -> ir.Value:
    """Of scores as `_scores` lays them; a sink takes its share of the weight and gives nothing."""
    if sinks is None:
        return ops.cast(ops("Softmax", scores, axis=-1), _FLOAT, heads.dtype)
    if heads.num_groups > 1:  # each query head has its own
        scores = ops("Reshape", scores, ops.ints(0, heads.num_heads, -1, 0))
    column = ops("Reshape", sinks, ops.ints(1, heads.num_heads, 1, 1))
    column = ops.cast(column, dtype_of(sinks), _FLOAT)
    first = ops("Slice", scores, ops.ints(0), ops.ints(1), ops.ints(-1))  # [.., sequence, 1]
    column = ops("Expand", column, ops("Shape", first))
    weights = ops("Softmax", ops("Concat", scores, column, axis=-1), axis=-1)
    weights = ops("Slice", weights, ops.ints(0), ops.ints(-1), ops.ints(-1))
    if heads.num_groups > 1:
        weights = ops("Reshape", weights, ops.ints(0, heads.num_kv_heads, -1, 0))
    return ops.cast(weights, _FLOAT, heads.dtype)
