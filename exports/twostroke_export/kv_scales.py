"""The scales of an int8 KV cache, one for each channel of each head, measured on text.

A rotary embedding turns pairs of channels into one another as positions grow, so what one of them
holds after a few hundred tokens says little of what it holds after thousands. The length of the
pair stays what it is: both get the scale that the length asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twostroke.errors import ExportError
from twostroke_export.observe import Observed
from twostroke_export.rotary import LayerRotary

Scales = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Of a layer's keys and values, [1, kv_heads, 1, head_dim] each: float = int8 * scale."""

_LARGEST = 127
# Other text reaches further: values in particular, which no rotation bounds. Chosen by KL.
_KEY_MARGIN, _VALUE_MARGIN = 1.05, 1.3
_SMALLEST = 1e-6  # of a scale; a channel that is always zero has none


def kv_scales(model: Any, observed: Observed, token_ids: Sequence[int]) -> list[Scales]:
    """For each layer the scales that hold what `token_ids` [tokens] leave in the cache.

    Raises:
        ExportError: the model keeps another cache than its attention layers tell of.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([list(token_ids)]), cache=cache, use_cache=True)
    found = [(layer.keys, layer.values) for layer in cache.layers]
    _check(model, observed, found)
    rotaries = observed.rotary.layers if observed.rotary else (None,) * len(found)
    return [
        (_scales(_reach(keys, rotary), _KEY_MARGIN), _scales(values, _VALUE_MARGIN))
        for (keys, values), rotary in zip(found, rotaries, strict=True)
    ]


def _check(model: Any, observed: Observed, found: Sequence[tuple[Any, Any]]) -> None:
    shapes = [
        (tuple(side.shape[1::2]) if isinstance(side, torch.Tensor) else None)
        for layer in found
        for side in layer
    ]
    wanted = [
        (layer.num_kv_heads, layer.head_dim) for layer in observed.layers for _ in ("key", "value")
    ]
    if shapes != wanted:
        raise ExportError(
            f"The cache of a {model.config.model_type!r} model is not the keys and values of its "
            f"{len(observed.layers)} attention layers, so it cannot be kept in int8; leave out "
            f"--kv-dtype int8."
        )


def _reach(keys: torch.Tensor, rotary: LayerRotary | None) -> torch.Tensor:
    """Keys [1, kv_heads, tokens, head_dim] -> how far each channel can get at any position."""
    if rotary is None:
        return keys
    width = 2 * rotary.caches(1, 1)[0].shape[-1]
    turned, still = keys[..., :width], keys[..., width:]
    if rotary.is_interleaved:
        lengths = turned.unflatten(-1, (-1, 2)).norm(dim=-1).repeat_interleave(2, -1)
    else:
        lengths = turned.unflatten(-1, (2, -1)).norm(dim=-2).repeat(1, 1, 1, 2)
    return torch.cat((lengths, still), dim=-1)


def _scales(reach: torch.Tensor, margin: float) -> npt.NDArray[np.float32]:
    largest = reach.float().abs().amax(2, keepdim=True)  # [1, kv_heads, 1, head_dim]
    scales: npt.NDArray[np.float32] = (largest * margin / _LARGEST).clamp(min=_SMALLEST).numpy()
    return scales
