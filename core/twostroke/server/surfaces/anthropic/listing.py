"""Models as Anthropic's clients list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from twostroke.server.served import Served

VERSION_HEADER = "anthropic-version"
_UNKNOWN_DATE = "1970-01-01T00:00:00Z"


def is_anthropic(request: web.Request) -> bool:
    """Whether a client of Anthropic's asks; it sends its version to every route."""
    return VERSION_HEADER in request.headers


def models_body(models: Iterable[Served]) -> dict[str, Any]:
    """The list of models: one page, which has them all."""
    data = [model_body(model) for model in models]
    ids = [each["id"] for each in data]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def model_body(model: Served) -> dict[str, Any]:
    """One model. Prompt and answer share its context, which a load may have to tell first."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": _UNKNOWN_DATE,
        "lifecycle": "active",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.context_tokens,
    }
