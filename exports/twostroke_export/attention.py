"""The attention plug point: how a traced model comes to hold GroupQueryAttention.

transformers dispatches attention by name (its AttentionInterface). Two functions are registered
here. `PROBE` runs plain causal attention and writes down the geometry it saw; `FUSED` emits
`com.microsoft::GroupQueryAttention`, taking the past from and giving the present to the
`KVState` that is current. A name without a mask function makes transformers build no mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twostroke.errors import ExportError
from twostroke_export.rotary import Rotation, RotaryObserver, RotaryPlan, observing_rotary, plan_rotary

PROBE = "twostroke_probe"
FUSED = "twostroke_fused"


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one call of the attention function looked like."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(slots=True)
class Watch:
    """What the probing attention function writes down."""

    rotary: RotaryObserver
    layers: list[LayerGeometry] = field(default_factory=list)


@dataclass(slots=True)
class KVState:
    """The cache of one traced forward: past goes in, present comes out, in the order of calls.

    past: for each layer key and value, [batch, kv_heads, capacity, head_dim].
    seqlens_k: [batch] int32, tokens in the row after this step, minus 1.
    total_sequence_length: [] int32, the longest row after this step.
    rotations: for each layer the rotation that attention performs, or None.
    """

    past: list[tuple[torch.Tensor, torch.Tensor]]
    seqlens_k: torch.Tensor
    total_sequence_length: torch.Tensor
    rotations: Sequence[Rotation | None]
    present: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


_current: KVState | None = None
_watch: Watch | None = None


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Runs the model with the attention function `name`, then puts the old one back.

    Raises:
        ExportError: the model has no attention plug point.
    """
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
    except (ValueError, AttributeError, KeyError) as error:
        raise _no_plug_point(model) from error
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def caching(state: KVState) -> Iterator[KVState]:
    """Makes `state` the one that the fused attention function reads and writes."""
    global _current
    _current = state
    try:
        yield state
    finally:
        _current = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What a forward of two tokens told about the model."""

    layers: tuple[LayerGeometry, ...]
    rotary: RotaryPlan | None


def observe(model: Any) -> Observed:
    """Reads the geometry of each attention layer, and its rotary, from a forward of two tokens.

    Raises:
        ExportError: no attention call arrived at the plug point, or one of a kind that
            GroupQueryAttention cannot express.
    """
    global _watch
    ids = torch.tensor([[0, 1]])
    with attending(model, PROBE), observing_rotary(model) as rotary, torch.no_grad():
        _watch = Watch(rotary)
        try:
            model(input_ids=ids, position_ids=torch.arange(2)[None], use_cache=False)
            layers = tuple(_watch.layers)
        finally:
            _watch = None
    if not layers:
        raise _no_plug_point(model)
    head_dims = {layer.head_dim for layer in layers}
    plan = plan_rotary(model, rotary, min(head_dims)) if len(head_dims) == 1 else None
    return Observed(layers, plan)


def _no_plug_point(model: Any) -> ExportError:
    return ExportError(
        f"The architecture {model.config.model_type!r} does not dispatch its attention through "
        f"transformers' AttentionInterface, so it cannot be exported; choose a model of an "
        f"architecture that does (llama, qwen, mistral, gemma, phi and most others)."
    )


def _refuse_unknown(module: Any, mask: Any, options: dict[str, Any]) -> None:
    name = type(module).__name__
    if mask is not None:
        raise ExportError(
            f"{name} adds a mask or bias of its own to its attention scores, which the fused "
            f"attention operator cannot express; this model cannot be exported yet."
        )
    if not getattr(module, "is_causal", True):
        raise ExportError(f"{name} is not causal: only decoder models can be exported.")
    sinks = [key for key, value in options.items() if isinstance(value, torch.Tensor)]
    sinks = [key for key in sinks if key not in ("position_ids", "cache_position")]
    if sinks:
        raise ExportError(
            f"{name} gives its attention the tensor {sinks[0]!r}, which is not supported yet; "
            f"this model cannot be exported."
        )


def _probe_attention(
    module: Any,
    query: torch.Tensor,  # [batch, heads, sequence, head_dim]
    key: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    value: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    _refuse_unknown(module, attention_mask, options)
    if value.shape[-1] != key.shape[-1] or query.shape[1] % key.shape[1]:
        raise ExportError(
            f"{type(module).__name__} has {query.shape[1]} query heads over {key.shape[1]} key "
            f"heads of {key.shape[-1]} and values of {value.shape[-1]}; GroupQueryAttention needs "
            f"equal key and value sizes and a whole number of query heads for each key head."
        )
    if _watch is not None:
        _watch.layers.append(LayerGeometry(query.shape[1], key.shape[1], key.shape[-1]))
        _watch.rotary.attend(query, key)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2), None


def _fused_attention(
    module: Any,
    query: torch.Tensor,  # [batch, heads, sequence, head_dim]
    key: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    value: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    _refuse_unknown(module, attention_mask, options)
    state = _current
    if state is None:
        raise RuntimeError("the fused attention function ran outside caching()")
    batch, heads, sequence, head_dim = query.shape
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
    if rotation is not None:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotation.is_interleaved)}
    output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (
            _packed(query),
            _packed(key),
            _packed(value),
            past_key,
            past_value,
            state.seqlens_k,
            state.total_sequence_length,
            rotation.cos if rotation is not None else None,
            rotation.sin if rotation is not None else None,
        ),
        attributes,
        dtypes=(query.dtype, past_key.dtype, past_value.dtype),
        shapes=((batch, sequence, heads * head_dim), past_key.shape, past_value.shape),
        version=1,
    )
    state.present.append((present_key, present_value))
    return output.reshape(batch, sequence, heads, head_dim), None


def _packed(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, sequence, head_dim] -> [batch, sequence, heads * head_dim]."""
    return states.transpose(1, 2).flatten(2)


ALL_ATTENTION_FUNCTIONS.register(PROBE, _probe_attention)
ALL_ATTENTION_FUNCTIONS.register(FUSED, _fused_attention)
