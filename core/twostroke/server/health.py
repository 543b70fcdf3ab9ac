"""`GET /health`: ready or not and why, where the nodes run, how busy each model is; is it alive?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from twostroke.life.resident import process_bytes, resident_bytes
from twostroke.model import Model
from twostroke.server.keys import IN_FLIGHT, MODELS
from twostroke.server.replies import json_reply
from twostroke.server.served import Served


async def health(request: web.Request) -> web.StreamResponse:
    """200 with the facts; 503 while stopping, unhealthy, or loading what the start wants."""
    models, in_flight = request.app[MODELS], request.app[IN_FLIGHT]
    status = "ok" if models.is_ready else "loading"
    if any(not model.is_healthy for model in models.ready()):
        status = "unhealthy"
    if in_flight.is_stopping:
        status = "stopping"
    body = {
        "status": status,
        "num_requests_in_flight": in_flight.count,
        "memory": await asyncio.to_thread(_memory, [each.model for each in models.residents()]),
        # How many, not which: this is answered to everybody, and the log has the words.
        "config": {"pending": models.pending, "num_problems": len(models.problems)},
        "models": [
            *(_body(served) for served in models.served.values()),
            *({**_model_body(each.model), "status": "unloading"} for each in models.leaving),
        ],
    }
    return json_reply(body, status=200 if status == "ok" else 503)


async def live(request: web.Request) -> web.StreamResponse:
    """200 for as long as the process answers at all, whatever its models do.

    What an orchestrator restarts a process by: a server that loads, or lets its last streams end,
    must not be restarted for that.
    """
    return json_reply({"status": "alive"})


def _memory(ready: Iterable[Model]) -> dict[str, int | None]:
    """What the process should take right now and what it does; null where it cannot be read."""
    before = process_bytes()
    planned = sum(model.status()["memory"]["planned_now_bytes"] for model in ready)
    return {
        "process_bytes": before,
        "planned_bytes": None if before is None else before + planned,
        "resident_bytes": resident_bytes(),
    }


def _body(served: Served) -> dict[str, Any]:
    if served.resident is not None:
        return {**_model_body(served.resident.model), "has_fault": served.has_fault}
    body: dict[str, Any] = {"name": served.name, "status": served.state.value}
    if served.stage is not None:
        body["stage"] = served.stage
    if served.failure is not None:
        body["reason"] = served.failure.reason
    return body


def _model_body(model: Model) -> dict[str, Any]:
    report = model.status()
    return {"status": report["health"]["state"], **report}
