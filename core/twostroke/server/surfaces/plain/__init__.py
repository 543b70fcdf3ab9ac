"""The plain surface: `POST /generate`, the simplest of all."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface
from twostroke.server.surfaces.plain.generate import NDJSON, SSE, TEXT, GenerateBody, generate
from twostroke.server.surfaces.plain.held import set_up_held

_ANSWER = {
    "text": {"type": "string"},
    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
    "num_prompt_tokens": {"type": "integer"},
    "num_completion_tokens": {"type": "integer"},
    "reasoning": {"type": "string"},
    "tool_calls": {"type": "array", "items": {"type": "object"}},
    "timings": {"type": "object"},
}
_REPLY = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "request_id": {"type": "string"},
        **_ANSWER,
        "choices": {"type": "array", "items": {"type": "object", "properties": _ANSWER}},
    },
    "required": ["model", "request_id", "num_prompt_tokens", "num_completion_tokens", "timings"],
}

SURFACE = Surface(
    name="plain",
    api_version=1,
    summary="text as it is made: `curl -N` on it types like a person",
    routes=(
        Route(
            "POST",
            "/generate",
            generate,
            "The text that follows a prompt or a conversation.",
            body=GenerateBody,
            reply=_REPLY,
            streams=(TEXT, NDJSON, SSE),
            example={"prompt": "The capital of France is", "max_tokens": 8},
        ),
    ),
    set_up=set_up_held,
)
