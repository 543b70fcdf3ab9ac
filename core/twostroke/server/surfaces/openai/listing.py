"""`GET /v1/models` and `/v1/models/{id}`; clients of Anthropic's get them in its shape."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from twostroke.model import Model
from twostroke.server.keys import MODELS
from twostroke.server.replies import json_reply
from twostroke.server.surfaces.anthropic.listing import is_anthropic, model_body, models_body


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models` with the models that are ready."""
    ready = request.app[MODELS].ready()
    if is_anthropic(request):
        return json_reply(models_body(ready))
    return json_reply({"object": "list", "data": [_model_body(model) for model in ready]})


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models/{id}`; an id may hold slashes and colons, raw or encoded."""
    model = request.app[MODELS].find(request.match_info["id"])
    return json_reply(model_body(model) if is_anthropic(request) else _model_body(model))


def _model_body(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "twostroke",
        # vLLM's name for it; the limit that is enforced is the limit that is published.
        "max_model_len": model.context_tokens,
    }
