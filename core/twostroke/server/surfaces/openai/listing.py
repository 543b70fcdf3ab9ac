"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from twostroke.server.keys import CALLER, MODELS
from twostroke.server.replies import json_reply
from twostroke.server.served import Served


async def list_models(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models` with all that the caller may use, loaded or not."""
    caller, served = request[CALLER], request.app[MODELS].served.values()
    data = [_model_body(each) for each in served if caller.may_use(each.name)]
    return json_reply({"object": "list", "data": data})


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/models/{id}`; an id may hold slashes and colons, raw or encoded."""
    served = request.app[MODELS].look_up(request.match_info["id"])
    request[CALLER].check_model(served.name)
    return json_reply(_model_body(served))


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
