"""Long rope: the angles of a context beyond the one that a model was first trained on.

Such a model (Ding et al. 2024, the Phi family) has two sets of frequency factors and takes the long
one for every position as soon as a sequence passes its original length. Keys that are cached by
then were turned by the short one, so a cache that crosses the line in the middle is wrong in either
set. An export therefore holds one: a context up to the original length the short factors, a
longer one the long factors at every position, which is what the model does for long sequences.
"""

from __future__ import annotations

from typing import Any

import torch

from twostroke.errors import ExportError


def original_length(config: Any) -> int | None:
    """The length in tokens up to which the short factors hold; None without long rope."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    found = rope.get("original_max_position_embeddings") or getattr(
        text, "original_max_position_embeddings", None
    )
    return int(found) if found else None


def use_long_factors(model: Any, original_tokens: int) -> None:
    """Makes the model take its long factors whatever the length. Mutates its rotary modules.

    Each is asked for one position more, behind the original length, whose angles are dropped again.

    Raises:
        ExportError: the model has no rotary module that could be asked.
    """
    modules = [m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    if not modules:
        raise ExportError(
            f"The architecture {model.config.model_type!r} has long rope but no rotary module of "
            f"its own, so its long factors cannot be chosen; ask for a context of at most "
            f"{original_tokens} tokens."
        )
    for module in modules:
        module.forward = _asking_farther(module.forward, original_tokens)


def _asking_farther(forward: Any, original_tokens: int) -> Any:
    def extended(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            return value
        farther = torch.full((value.shape[0], 1), original_tokens, dtype=value.dtype)
        return torch.cat((value, farther), dim=1)  # position_ids [batch, sequence + 1]

    def asking(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = forward(
            *(extended(value) for value in args),
            **{key: extended(value) for key, value in kwargs.items()},
        )
        return cos[:, :-1], sin[:, :-1]

    return asking
