"""Ollama's routes about models: what is there is told, what would change it is refused."""

from __future__ import annotations

from typing import NoReturn

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from twostroke.errors import RequestError
from twostroke.server.body import read_json
from twostroke.server.fields import check_shape
from twostroke.server.keys import MODELS
from twostroke.server.model_for import named, usable
from twostroke.server.replies import json_reply
from twostroke.server.served import Served
from twostroke.server.surfaces.ollama.library import listed, running, shown
from twostroke.server.surfaces.ollama.names import known_names, served_name

API_VERSION = "0.12.11"
"""The version of Ollama whose API this is; clients ask for one that knows what they need."""


class NamedModel(BaseModel):
    """A body that names a model."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    name: str | None = None  # its older name


async def tags(request: web.Request) -> web.StreamResponse:
    """Answers `GET /api/tags` with all that the caller may use, loaded or not."""
    return json_reply({"models": [await listed(each) for each in usable(request)]})


async def ps(request: web.Request) -> web.StreamResponse:
    """Answers `GET /api/ps` with the models that are in memory."""
    found = [
        running(served, served.resident)
        for served in usable(request)
        if served.resident is not None
    ]
    return json_reply({"models": found})


async def show(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/show`, and loads nothing for it."""
    return json_reply(await shown(await _served(request)))


async def version(request: web.Request) -> web.StreamResponse:
    """Answers `GET /api/version`."""
    return json_reply({"version": API_VERSION})


async def pull(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/pull`: of a model that is served there is nothing to be done.

    Raises:
        ModelNotFoundError, ModelNotAllowedError: the model is not served to the caller.
    """
    await _served(request)
    return json_reply({"status": "success"})


async def refuse_change(request: web.Request) -> NoReturn:
    """Answers what would make, copy, send or delete models.

    Raises:
        RequestError: always.
    """
    raise _not_here("The models of this server are those of its YAML: change it there.")


async def refuse_embeddings(request: web.Request) -> NoReturn:
    """Answers what asks for embeddings.

    Raises:
        RequestError: always.
    """
    raise _not_here("This server makes no embeddings: its models write text.")


async def _served(request: web.Request) -> Served:
    body = check_shape(NamedModel, await read_json(request))
    asked = served_name(body.model or body.name, known_names(request.app[MODELS]))
    return named(request, asked)


def _not_here(sentence: str) -> RequestError:
    return RequestError(sentence, status=501, code="not_implemented")
