"""The shapes of Ollama's whole answers, for the description of the server; more may come."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class OllamaAnswer(BaseModel):
    """What both kinds of answers end with; durations are in nanoseconds.

    Where nothing was to be answered (`done_reason` load) there are no counts.
    """

    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length", "load", "unload"]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[dict[str, Any]] = []


class OllamaMessage(BaseModel):
    """What a model says."""

    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[dict[str, Any]] = []


class OllamaChatAnswer(OllamaAnswer):
    """The whole answer to a conversation."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaAnswer):
    """The whole answer to a prompt; `context` are the ids of all that was read and written."""

    response: str
    thinking: str = ""
    context: list[int] = []


class OllamaModels(BaseModel):
    """A list of models."""

    models: list[dict[str, Any]]


class OllamaModel(BaseModel):
    """One model."""

    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    """The version of Ollama's API."""

    version: str


class OllamaStatus(BaseModel):
    """What has come of a request to pull a model."""

    status: Literal["success"]
