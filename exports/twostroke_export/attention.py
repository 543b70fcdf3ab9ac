"""The attention function that a traced model calls: emits GroupQueryAttention.

It takes the past from and gives the present to the `KVState` that is current, so the model's own
code never sees a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twostroke_export.plug_point import FUSED, refuse_unknown
from twostroke_export.rotary import Rotation


@dataclass(slots=True)
class KVState:
    """The cache of one traced forward: past goes in, present comes out, in the order of calls.

    past: for each layer key and value, [batch, kv_heads, capacity, head_dim].
    seqlens_k: [batch] int32, tokens in the row after this step, minus 1.
    total_sequence_length: [] int32, the longest row after this step.
    position_ids: [batch, sequence] int64.
    rotations: for each layer how its q and k are to be rotated, or None.
    """

    past: list[tuple[torch.Tensor, torch.Tensor]]
    seqlens_k: torch.Tensor
    total_sequence_length: torch.Tensor
    position_ids: torch.Tensor
    rotations: Sequence[Rotation | None]
    present: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


_current: KVState | None = None


@contextmanager
def caching(state: KVState) -> Iterator[KVState]:
    """Makes `state` the one that the fused attention function reads and writes."""
    global _current
    _current = state
    try:
        yield state
    finally:
        _current = None


def _fused_attention(
    module: Any,
    query: torch.Tensor,  # [batch, heads, sequence, head_dim]
    key: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    value: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,  # [heads], the attention sinks of gpt-oss
    **options: Any,
) -> tuple[torch.Tensor, None]:
    refuse_unknown(module, attention_mask, options)
    state = _current
    if state is None:
        raise RuntimeError("the fused attention function ran outside caching()")
    batch, heads, sequence, head_dim = query.shape
    num_missing = head_dim - value.shape[-1]  # values are narrower in multi-head latent attention
    if num_missing:
        value = torch.nn.functional.pad(value, (0, num_missing))
    past_key, past_value = state.past[len(state.present)]
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": key.shape[1],
        "scale": float(scaling if scaling is not None else 1.0 / math.sqrt(head_dim)),
    }
    if sliding_window is not None:
        attributes["local_window_size"] = int(sliding_window)
    if softcap is not None:
        attributes["softcap"] = float(softcap)
    rotation = state.rotations[len(state.present)]
    packed_query, packed_key = _packed(query), _packed(key)
    if rotation is not None and not rotation.fits_attention:
        packed_query = _rotated(packed_query, heads, rotation, state.position_ids)
        packed_key = _rotated(packed_key, key.shape[1], rotation, state.position_ids)
        rotation = None
    if rotation is not None:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotation.is_interleaved)}
    output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (
            packed_query,
            packed_key,
            _packed(value),
            past_key,
            past_value,
            state.seqlens_k,
            state.total_sequence_length,
            rotation.cos if rotation is not None else None,
            rotation.sin if rotation is not None else None,
            *((None, None, s_aux) if s_aux is not None else ()),  # input 11 is head_sink
        ),
        attributes,
        dtypes=(query.dtype, past_key.dtype, past_value.dtype),
        shapes=((batch, sequence, heads * head_dim), past_key.shape, past_value.shape),
        version=1,
    )
    state.present.append((present_key, present_value))
    attended = output.reshape(batch, sequence, heads, head_dim)
    return attended[..., : head_dim - num_missing] if num_missing else attended, None


def _rotated(
    packed: torch.Tensor,  # [batch, sequence, heads * head_dim]
    num_heads: int,
    rotation: Rotation,
    position_ids: torch.Tensor,  # [batch, sequence] int64
) -> torch.Tensor:
    rotated: torch.Tensor = torch.onnx.ops.symbolic(
        "com.microsoft::RotaryEmbedding",
        (packed, position_ids, rotation.cos, rotation.sin),
        {
            "interleaved": int(rotation.is_interleaved),
            "num_heads": num_heads,
            "rotary_embedding_dim": 2 * rotation.cos.shape[-1],
        },
        dtype=packed.dtype,
        shape=packed.shape,
        version=1,
    )
    return rotated


def _packed(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, sequence, head_dim] -> [batch, sequence, heads * head_dim]."""
    return states.transpose(1, 2).flatten(2)


ALL_ATTENTION_FUNCTIONS.register(FUSED, _fused_attention)
