"""`GET /v1/models` and `/v1/models/{id}`; clients of Anthropic's get them in its shape."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from twostroke.server.model_for import named, usable
from twostroke.server.replies import json_reply
from twostroke.server.served import Served
from twostroke.server.surfaces.anthropic.listing import is_anthropic, model_body, models_body


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models` with all that the caller may use, loaded or not."""
    listed = usable(request)
    if is_anthropic(request):
        return json_reply(models_body(listed))
    return json_reply({"object": "list", "data": [_model_body(each) for each in listed]})


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models/{id}`; an id may hold slashes and colons, raw or encoded."""
    served = named(request, request.match_info["id"])
    return json_reply(model_body(served) if is_anthropic(request) else _model_body(served))


def _model_body(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": 0,
        "owned_by": "twostroke",
        # vLLM's name for it; the limit that is enforced is the limit that is published.
        "max_model_len": served.context_tokens,
        "status": served.state.value,
        "aliases": list(served.aliases),
    }
