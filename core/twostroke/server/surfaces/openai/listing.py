"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from twostroke.model import Model
from twostroke.server.keys import CALLER, MODELS
from twostroke.server.replies import json_reply


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models` with the models that are ready and that the caller may use."""
    caller = request[CALLER]
    ready = request.app[MODELS].ready()
    data = [_model_body(model) for model in ready if caller.may_use(model.name)]
    return json_reply({"object": "list", "data": data})


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models/{id}`; an id may hold slashes and colons, raw or encoded."""
    model = request.app[MODELS].find(request.match_info["id"])
    request[CALLER].check_model(model.name)
    return json_reply(_model_body(model))


def _model_body(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "twostroke",
        # vLLM's name for it; the limit that is enforced is the limit that is published.
        "max_model_len": model.context_tokens,
    }
