"""Anthropic's surface: messages, and how many tokens they are."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface, without_v1
from twostroke.server.surfaces.anthropic.fields import MessagesBody, PromptFields
from twostroke.server.surfaces.anthropic.messages import count_tokens, messages
from twostroke.server.surfaces.anthropic.replies import Message, TokenCount
from twostroke.server.surfaces.anthropic.shapes import error_body

SURFACE = Surface(
    name="anthropic",
    api_version=1,
    summary="what Anthropic's clients speak, with and without /v1",
    routes=without_v1(
        Route(
            "POST",
            "/v1/messages",
            messages,
            "The next message of a conversation.",
            body=MessagesBody,
            reply=Message,
            streams="text/event-stream",
            example={"max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]},
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            count_tokens,
            "How many tokens a conversation is.",
            body=PromptFields,
            reply=TokenCount,
            example={"messages": [{"role": "user", "content": "Hello"}]},
        ),
    ),
    error_body=error_body,
    key_headers=("x-api-key", "Authorization"),
)
