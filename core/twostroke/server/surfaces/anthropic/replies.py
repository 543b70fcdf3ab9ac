"""The shapes of Anthropic's whole answers, for the description of the server; more may come."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class MessageUsage(BaseModel):
    """Token counts; `input_tokens` were not in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(BaseModel):
    """The whole answer to a conversation: blocks of type text, thinking or tool_use."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal[
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
    ]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """How many tokens a conversation is."""

    input_tokens: int
