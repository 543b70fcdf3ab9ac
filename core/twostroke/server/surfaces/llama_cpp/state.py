"""`GET /props` and `/slots`: what a model is and how busy it is. `?model=` names one of several."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from aiohttp import web

from twostroke.errors import UnavailableError
from twostroke.model import Model
from twostroke.server.keys import MODELS
from twostroke.server.model_for import named
from twostroke.server.replies import json_reply
from twostroke.server.surfaces.llama_cpp.shapes import settings


async def show_props(request: web.Request) -> web.StreamResponse:
    """Answers `GET /props`."""
    model = _model(request)
    tokenizer, template = model.tokenizer, model.template
    bos_id = tokenizer.bos_id
    return json_reply(
        {
            "default_generation_settings": {
                "n_ctx": model.context_tokens,
                "params": settings(model.sampling(), model.context_tokens),
            },
            "total_slots": model.engine.stats().num_rows,
            "model_alias": model.name,
            "model_path": model.name,
            "chat_template": "" if template is None else template.source,
            "bos_token": "" if bos_id is None else tokenizer.token(bos_id) or "",
            "modalities": {"vision": False, "audio": False},
            "build_info": f"twostroke {importlib.metadata.version('twostroke')}",
            "is_sleeping": False,
        }
    )


async def show_slots(request: web.Request) -> web.StreamResponse:
    """Answers `GET /slots`: one for each row, those in use first.

    Raises:
        UnavailableError: `fail_on_no_slot` is given and all are in use.
    """
    model = _model(request)
    stats = model.engine.stats()
    if "fail_on_no_slot" in request.query and stats.num_running >= stats.num_rows:
        raise UnavailableError("All slots are in use.")
    return json_reply([_slot(model, i, i < stats.num_running) for i in range(stats.num_rows)])


def _slot(model: Model, number: int, is_used: bool) -> dict[str, Any]:
    return {"id": number, "n_ctx": model.context_tokens, "is_processing": is_used}


def _model(request: web.Request) -> Model:
    """The model that is asked for, where it is loaded and the caller may use it."""
    return request.app[MODELS].find(named(request, request.query.get("model")).name)
