"""How many tokens an export can hold, from the model's own config."""

from __future__ import annotations

from typing import Any

from twostroke.errors import ExportError

_FALLBACK_TOKENS = 4096  # where a config names no limit
_LEAST_TOKENS = 2  # one to read and one to answer


def effective_context(name: str, limit: int | None, asked_tokens: int | None) -> int:
    """The smaller of what was asked for and the model's `limit`; all in tokens.

    Raises:
        ExportError: more was asked for than the model's limit, or too few.
    """
    if asked_tokens is None:
        return limit if limit is not None else _FALLBACK_TOKENS
    if asked_tokens < _LEAST_TOKENS:
        raise ExportError(
            f"A context of {asked_tokens} tokens is too small; ask for at least {_LEAST_TOKENS}."
        )
    if limit is not None and asked_tokens > limit:
        raise ExportError(
            f"A context of {asked_tokens} tokens was asked for, but {name} is limited to {limit}; "
            f"ask for at most {limit}."
        )
    return asked_tokens


def context_limit(config: Any) -> int | None:
    """The longest sequence that one set of rotary frequencies serves; None where unlimited.

    Long-rope models switch to other frequencies beyond their original length; a graph holds one
    set, the short one.
    """
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        limit = original or limit
    return int(limit) if limit else None
