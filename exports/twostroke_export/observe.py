"""Reads a model's attention layers from one eager forward of two tokens.

Configs name the geometry differently from family to family; the tensors that reach attention
cannot be misread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twostroke.errors import ExportError
from twostroke_export.plug_point import PROBE, attending, no_plug_point, refuse_unknown
from twostroke_export.rotary import RotaryPlan
from twostroke_export.rotary_probe import RotaryObserver, observing_rotary, plan_rotary


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one call of the attention function looked like."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What a forward of two tokens told about the model.

    is_fusable: its attention arrives at the plug point, so that an operator can take its place.
    """

    layers: tuple[LayerGeometry, ...]
    rotary: RotaryPlan | None
    is_fusable: bool = True


@dataclass(slots=True)
class _Watch:
    """What the probing attention function writes down."""

    rotary: RotaryObserver
    layers: list[LayerGeometry] = field(default_factory=list)


_watch: _Watch | None = None


def observe(model: Any) -> Observed:
    """Reads the geometry of each attention layer, and its rotary, from a forward of two tokens.

    Raises:
        ExportError: no attention call arrived at the plug point, or one of a kind that
            GroupQueryAttention cannot express.
    """
    global _watch
    ids = torch.tensor([[0, 1]])
    with attending(model, PROBE), observing_rotary(model) as rotary, torch.no_grad():
        _watch = _Watch(rotary)
        try:
            model(input_ids=ids, position_ids=torch.arange(2)[None], use_cache=False)
            layers = tuple(_watch.layers)
        finally:
            _watch = None
    if not layers:
        raise no_plug_point(model)
    head_dims = {layer.head_dim for layer in layers}
    plan = plan_rotary(model, rotary, min(head_dims)) if len(head_dims) == 1 else None
    return Observed(layers, plan)


def _probe_attention(
    module: Any,
    query: torch.Tensor,  # [batch, heads, sequence, head_dim]
    key: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    value: torch.Tensor,  # [batch, kv_heads, sequence, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    s_aux: torch.Tensor | None = None,  # attention sinks change what is attended, not the geometry
    **options: Any,
) -> tuple[torch.Tensor, None]:
    refuse_unknown(module, attention_mask, options)
    if value.shape[-1] > key.shape[-1] or query.shape[1] % key.shape[1]:
        raise ExportError(
            f"{type(module).__name__} has {query.shape[1]} query heads over {key.shape[1]} key "
            f"heads of {key.shape[-1]} and values of {value.shape[-1]}; GroupQueryAttention needs "
            f"values no wider than keys and a whole number of query heads for each key head."
        )
    if _watch is not None:
        _watch.layers.append(LayerGeometry(query.shape[1], key.shape[1], key.shape[-1]))
        _watch.rotary.attend(query, key)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(PROBE, _probe_attention)
