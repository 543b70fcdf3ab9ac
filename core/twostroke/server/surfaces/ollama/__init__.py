"""Ollama's surface: chat, generate, and what there is to know about models."""

from __future__ import annotations

from twostroke.server.middleware import Handler
from twostroke.server.surface import Route, Surface
from twostroke.server.surfaces.ollama.answering import chat, generate
from twostroke.server.surfaces.ollama.fields import OllamaChatBody, OllamaGenerateBody
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
from twostroke.server.surfaces.ollama.replies import (
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaModel,
    OllamaModels,
    OllamaStatus,
    OllamaVersion,
)
from twostroke.server.surfaces.ollama.shapes import error_body


def _refusal(method: str, path: str, handler: Handler) -> Route:
    """A route for something that is not done here, which clients are told in a sentence."""
    reply = {"type": "object", "properties": {"error": {"type": "string"}}}
    return Route(method, path, handler, "Refused.", reply=reply, reply_statuses=(501,))


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
            body=OllamaChatBody,
            reply=OllamaChatAnswer,
            error_statuses=(501,),
            streams=NDJSON,
            example={"messages": [{"role": "user", "content": "Hello"}]},
        ),
        Route(
            "POST",
            "/api/generate",
            generate,
            "The answer to a prompt.",
            body=OllamaGenerateBody,
            reply=OllamaGenerateAnswer,
            error_statuses=(501,),
            streams=NDJSON,
            example={"prompt": "Hello", "options": {"num_predict": 16}},
        ),
        Route("GET", "/api/tags", tags, "The models that are served.", reply=OllamaModels),
        Route(
            "POST",
            "/api/show",
            show,
            "One model.",
            body=NamedModel,
            reply=OllamaModel,
            example={},
        ),
        Route("GET", "/api/ps", ps, "The models that are in memory.", reply=OllamaModels),
        Route("GET", "/api/version", version, "Whose API this is.", reply=OllamaVersion),
        Route(
            "POST",
            "/api/pull",
            pull,
            "Whether a model is served.",
            body=NamedModel,
            reply=OllamaStatus,
            example={},
        ),
        _refusal("POST", "/api/push", refuse_change),
        _refusal("POST", "/api/create", refuse_change),
        _refusal("POST", "/api/copy", refuse_change),
        _refusal("DELETE", "/api/delete", refuse_change),
        _refusal("POST", "/api/blobs/{digest}", refuse_change),
        _refusal("POST", "/api/embed", refuse_embeddings),
        _refusal("POST", "/api/embeddings", refuse_embeddings),
    ),
    error_body=error_body,
)
