"""OpenAI's surface: chat completions, completions and models."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface, without_v1
from twostroke.server.surfaces.openai.chat import ChatBody, chat_completions
from twostroke.server.surfaces.openai.completions import CompletionBody, completions
from twostroke.server.surfaces.openai.listing import list_models, show_model
from twostroke.server.surfaces.openai.replies import (
    ChatCompletion,
    ModelCard,
    ModelList,
    TextCompletion,
)

_SSE = "text/event-stream"

SURFACE = Surface(
    name="openai",
    api_version=1,
    summary="what OpenAI's clients speak, with and without /v1",
    routes=without_v1(
        Route(
            "POST",
            "/v1/chat/completions",
            chat_completions,
            "The next message of a conversation.",
            body=ChatBody,
            reply=ChatCompletion,
            streams=_SSE,
            example={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16},
        ),
        Route(
            "POST",
            "/v1/completions",
            completions,
            "The text that follows one or several prompts.",
            body=CompletionBody,
            reply=TextCompletion,
            streams=_SSE,
            example={"prompt": "The capital of France is", "max_tokens": 8},
        ),
        Route("GET", "/v1/models", list_models, "The models that are ready.", reply=ModelList),
        Route("GET", "/v1/models/{id:.+}", show_model, "One model.", reply=ModelCard),
    ),
)
