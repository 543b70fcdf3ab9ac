"""`POST /admin/models/{name}/load` and `/unload`: an operator decides what is in memory."""

from __future__ import annotations

import asyncio

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.server.access import is_loopback
from twostroke.server.keys import CALLER, MODELS
from twostroke.server.models import BringsModels
from twostroke.server.replies import json_reply
from twostroke.server.served import Served
from twostroke.server.surface import Route

_REPLY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "status": {"type": "string"}},
    "required": ["name", "status"],
}


async def load(request: web.Request) -> web.StreamResponse:
    """Loads a model now, whatever failed before, and answers when it is there.

    Raises:
        ModelNotFoundError, RequestError: no such model, or the caller is no operator.
        UnavailableError: it is not there within `server.load_wait_s`, has no room, or cannot be.
    """
    served = request.app[MODELS].look_up(request.match_info["name"])
    brings = _of_operators(request)
    served.failure = None  # no pause after it
    if served.resident is None:
        await brings.wait_for(served)
    return _reply(served)


async def unload(request: web.Request) -> web.StreamResponse:
    """Takes a model out of memory; answers 202 where its answers last longer than a load may.

    Raises:
        ModelNotFoundError, RequestError: no such model, or the caller is no operator.
            Nobody is one of a server that was given its models.
    """
    served = request.app[MODELS].look_up(request.match_info["name"])
    await leave(request, served)
    return _reply(served)


async def leave(request: web.Request, served: Served) -> None:
    """Takes a model out of memory for an operator; returns when it has left, or is on its way.

    Raises:
        RequestError: the caller is no operator, or this server loads no models.
    """
    brings = _of_operators(request)
    if served.resident is not None:
        await asyncio.wait({brings.unload(served)}, timeout=brings.load_wait_s)


def _of_operators(request: web.Request) -> BringsModels:
    caller, models = request[CALLER], request.app[MODELS]
    is_here = bool(caller.name) or is_loopback(request.remote)
    if caller.allowance is not None or not is_here:
        raise RequestError(
            "Models are loaded and unloaded by operators: with one of server.keys, or from this "
            "machine where no keys are configured.",
            status=403,
            code="operators_only",
        )
    if models.brings is None:
        raise RequestError(
            "This server was given its models: it loads and unloads none.",
            status=403,
            code="operators_only",
        )
    return models.brings


def _reply(served: Served) -> web.Response:
    status = 202 if served.num_leaving else 200
    return json_reply({"name": served.name, "status": served.state.value}, status=status)


ROUTES = (
    Route(
        "POST",
        "/admin/models/{name:.+}/load",
        load,
        "Loads a model now; answers when it is there.",
        reply=_REPLY,
    ),
    Route(
        "POST",
        "/admin/models/{name:.+}/unload",
        unload,
        "Takes a model out of memory when its answers have ended.",
        reply=_REPLY,
        reply_statuses=(200, 202),
    ),
)
