"""The attention plug point: transformers dispatches attention by name (its AttentionInterface).

The export registers two names: `PROBE` looks at what arrives, `FUSED` emits the fused operator.
Neither has a mask function, which makes transformers build no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from twostroke.errors import ExportError

PROBE = "twostroke_probe"
FUSED = "twostroke_fused"


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
        raise no_plug_point(model) from error
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def no_plug_point(model: Any) -> ExportError:
    """The refusal of an architecture with attention code of its own."""
    return ExportError(
        f"The architecture {model.config.model_type!r} does not dispatch its attention through "
        f"transformers' AttentionInterface, so it has no graph of the fused dialect; export it "
        f"with --dialect standard."
    )


def refuse_unknown(module: Any, mask: Any, options: dict[str, Any]) -> None:
    """Refuses what GroupQueryAttention has no input for, rather than dropping it.

    Raises:
        ExportError: naming the attention module and what it asked for.
    """
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
