"""Models whose attention code is their own, such as falcon and bloom: traced as they stand.

What does not go through transformers' plug point cannot be swapped for a fused operator. It still
takes its past from a cache and adds to it, and a graph of exactly that is one of the standard
dialect: the cache comes in, grows by the new tokens, and goes out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache

from twostroke.errors import ExportError
from twostroke_export.observe import LayerGeometry, Observed
from twostroke_export.stroke_module import last_rows


def observe_own_attention(model: Any) -> Observed:
    """Reads the geometry of each layer's cache from a forward of two tokens.

    Raises:
        ExportError: the model keeps no such cache.
    """
    cache = DynamicCache()
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([[0, 1]]), **_caching(model, cache))
        layers = tuple(_geometry(model, layer.keys, layer.values) for layer in cache.layers)
    except Exception as error:  # the model's code raises whatever it met
        raise _no_cache(model) from error
    if not layers:
        raise _no_cache(model)
    return Observed(layers, rotary=None, is_fusable=False)


@contextmanager
def attending_eagerly(model: Any) -> Iterator[None]:
    """Has the model multiply and mask in plain steps; then puts back what it did before.

    Set where the modules read it: models without the plug point ignore transformers' own setter.
    """
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = "eager"
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _geometry(model: Any, keys: torch.Tensor, values: torch.Tensor) -> LayerGeometry:
    _, num_kv_heads, num_tokens, head_dim = keys.shape
    if keys.shape != values.shape or num_tokens != 2:
        raise _no_cache(model)
    config = model.config.get_text_config(decoder=True)
    num_heads = getattr(config, "num_attention_heads", num_kv_heads)
    return LayerGeometry(num_heads, num_kv_heads, head_dim)


def _no_cache(model: Any) -> ExportError:
    return ExportError(
        f"The architecture {model.config.model_type!r} neither dispatches its attention through "
        f"transformers' AttentionInterface nor keeps keys and values of one size in a cache, so it "
        f"cannot be exported in any dialect; choose a model of another architecture."
    )


def _caching(model: Any, cache: DynamicCache) -> dict[str, Any]:
    """The arguments that hand a cache to the model; transformers has two names for it."""
    names = inspect.signature(type(model).forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache, "use_cache": True}


class OwnAttentionModule(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """The model behind the flat inputs of the standard dialect.

    Its forward takes input_ids [batch, sequence] int64, position_ids likewise, logit_index
    [batch, k] int64 (None in decode) and past, a flat list of key and value for each layer; it
    gives logits [batch, k, vocab] float32 and the present tensors, flat likewise.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.takes_positions = "position_ids" in inspect.signature(type(model).forward).parameters

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_index: torch.Tensor | None,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """See the class."""
        cache = DynamicCache()
        for number, sides in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(*sides, number)
        given = _caching(self.model, cache)
        if self.takes_positions:
            given["position_ids"] = position_ids
        with last_rows(self.model, logit_index):
            output = self.model(input_ids=input_ids, **given)
        present = [side for layer in cache.layers for side in (layer.keys, layer.values)]
        return (output.logits.float(), *present)
