"""`GET /v1/models` and `/v1/models/{id}`; clients of Anthropic's get them in its shape."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from twostroke.server.keys import MODELS
from twostroke.server.replies import json_reply
from twostroke.server.served import Served
from twostroke.server.surfaces.anthropic.listing import is_anthropic, model_body, models_body


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models` with all that is served, loaded or not."""
    all_served = request.app[MODELS].served.values()
    if is_anthropic(request):
        return json_reply(models_body(all_served))
    data = [_model_body(served) for served in all_served]
    return json_reply({"object": "list", "data": data})


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models/{id}`; an id may hold slashes and colons, raw or encoded."""
    served = request.app[MODELS].look_up(request.match_info["id"])
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
