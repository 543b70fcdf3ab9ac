"""The shapes of OpenAI's whole answers, for the description of the server; more keys may come."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class Usage(BaseModel):
    """Token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class AnswerMessage(BaseModel):
    """What a model says; `content` is null where it only calls functions."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[dict[str, Any]] = []
    reasoning_content: str = ""


class ChatChoice(BaseModel):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]


class TextChoice(BaseModel):
    """One of the answers."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The whole answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: dict[str, Any]


class TextCompletion(BaseModel):
    """The whole answer to prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    timings: dict[str, Any]


class ModelCard(BaseModel):
    """A model; `max_model_len` is its context in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]
