"""Ollama's surface: chat, generate, and what there is to know about models."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface
from twostroke.server.surfaces.ollama.answering import chat, generate
from twostroke.server.surfaces.ollama.fields import ChatBody, GenerateBody
from twostroke.server.surfaces.ollama.frames import NDJSON
from twostroke.server.surfaces.ollama.models import (
    NamedModel,
    ps,
    pull,
    refuse_change,
    refuse_embeddings,
    show,
    tags,
    version,
)
from twostroke.server.surfaces.ollama.shapes import error_body

_CHANGE = "Refused: the YAML says which models are served."
_EMBED = "Refused: no embeddings are made."

SURFACE = Surface(
    name="ollama",
    api_version=1,
    summary="what Ollama's clients speak, below /api",
    routes=(
        Route(
            "POST",
            "/api/chat",
            chat,
            "The next message of a conversation.",
            body=ChatBody,
            streams=NDJSON,
        ),
        Route(
            "POST",
            "/api/generate",
            generate,
            "The answer to a prompt.",
            body=GenerateBody,
            streams=NDJSON,
        ),
        Route("GET", "/api/tags", tags, "The models that are served."),
        Route("POST", "/api/show", show, "One model.", body=NamedModel),
        Route("GET", "/api/ps", ps, "The models that are in memory."),
        Route("GET", "/api/version", version, "The version of Ollama's API that is spoken."),
        Route("POST", "/api/pull", pull, "Whether a model is served.", body=NamedModel),
        Route("POST", "/api/push", refuse_change, _CHANGE),
        Route("POST", "/api/create", refuse_change, _CHANGE),
        Route("POST", "/api/copy", refuse_change, _CHANGE),
        Route("DELETE", "/api/delete", refuse_change, _CHANGE),
        Route("POST", "/api/blobs/{digest}", refuse_change, _CHANGE),
        Route("POST", "/api/embed", refuse_embeddings, _EMBED),
        Route("POST", "/api/embeddings", refuse_embeddings, _EMBED),
    ),
    error_body=error_body,
)
