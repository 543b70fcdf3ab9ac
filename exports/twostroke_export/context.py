"""How many tokens an export can hold, from the model's own config."""

from __future__ import annotations

from typing import Any

from twostroke.errors import ExportError

_FALLBACK_TOKENS = 4096  # where a config names no limit
_LEAST_TOKENS = 2  # one to read and one to answer


def effective_context(
    name: str, limit: int | None, asked_tokens: int | None, default_tokens: int | None = None
) -> int:
    """What was asked for, within the model's `limit`, or else the default; all in tokens.

    The default is the limit where none is given.

    Raises:
        ExportError: more was asked for than the model's limit, or too few.
    """
    if asked_tokens is None:
        limit = default_tokens or limit
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
    """The longest sequence that the model is made for, in tokens; None where unlimited."""
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return int(limit) if limit else None
