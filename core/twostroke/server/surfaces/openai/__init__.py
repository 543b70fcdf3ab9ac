"""OpenAI's surface: chat completions, completions, responses and models."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface, without_v1
from twostroke.server.surfaces.openai.chat import chat_completions
from twostroke.server.surfaces.openai.chat_fields import ChatBody
from twostroke.server.surfaces.openai.completions import CompletionBody, completions
from twostroke.server.surfaces.openai.listing import list_models, show_model
from twostroke.server.surfaces.openai.replies import (
    ChatCompletion,
    ModelCard,
    ModelList,
    TextCompletion,
)
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.responses.routes import count_input_tokens, create_response
from twostroke.server.surfaces.openai.responses.store import set_up_store
from twostroke.server.surfaces.openai.responses.stored_routes import (
    delete_response,
    list_input_items,
    show_response,
)

_RESPONSE = "/v1/responses/{id:(?!input_tokens$)[^/]+}"
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
        Route(
            "POST",
            "/v1/responses",
            create_response,
            "A response to the items of a conversation.",
            body=ResponsesBody,
            reply={"type": "object"},
            streams=_SSE,
            example={"input": "Hello", "max_output_tokens": 16},
        ),
        Route(
            "POST",
            "/v1/responses/input_tokens",
            count_input_tokens,
            "How many tokens a response would be given.",
            body=ResponsesBody,
            reply={"type": "object"},
            example={"input": "Hello"},
        ),
        Route(
            "GET",
            _RESPONSE,
            show_response,
            "A response that is stored.",
            reply={"type": "object"},
        ),
        Route(
            "DELETE",
            _RESPONSE,
            delete_response,
            "Forgets a response.",
            reply={"type": "object"},
        ),
        Route(
            "GET",
            "/v1/responses/{id}/input_items",
            list_input_items,
            "What a response was given.",
            reply={"type": "object"},
        ),
        Route("GET", "/v1/models", list_models, "The models that are ready.", reply=ModelList),
        Route("GET", "/v1/models/{id:.+}", show_model, "One model.", reply=ModelCard),
    ),
    set_up=set_up_store,
)
