"""Ollama's shapes: the head of each line, pieces of both kinds, the counts at the end, errors.

Durations are in nanoseconds. `prompt_eval_duration` is what prefill took; `eval_duration` goes from
the first token to the last; `total_duration` from the arrival of the request; `load_duration` is
how long it waited for its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.model import ToolCall
from twostroke.server.call_arguments import arguments_object
from twostroke.server.turn import Turn
from twostroke.types import FinishedEvent

Piece = Callable[[str, str, Sequence[dict[str, Any]]], dict[str, Any]]
"""What a piece of an answer is in a line: of content, of thinking, and calls."""


def error_body(error: TwostrokeError) -> dict[str, Any]:
    """Ollama's error object: a sentence."""
    return {"error": str(error)}


def head(name: str) -> dict[str, str]:
    """What each line begins with; `name` is that of the model, as it was asked for."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": name, "created_at": now}


def message_piece(
    content: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A piece of an answer of `/api/chat`."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def response_piece(
    content: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A piece of an answer of `/api/generate`, which calls nothing."""
    return {"response": content, **({"thinking": thinking} if thinking else {})}


def call_shape(index: int, call: ToolCall) -> dict[str, Any]:
    """A whole call."""
    arguments = arguments_object(call.arguments)
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def ending(turn: Turn, finished: FinishedEvent, load_s: float) -> dict[str, Any]:
    """Why the answer ended, and the counts."""
    timings = turn.with_blocked(finished.timings)
    return {
        "done": True,
        "done_reason": finished.reason.value,
        "total_duration": _ns(timings.total_ms),
        "load_duration": round(load_s * 1e9),
        "prompt_eval_count": finished.num_prompt_tokens,
        "prompt_eval_duration": _ns(timings.prefill_ms),
        "eval_count": finished.num_completion_tokens,
        "eval_duration": _ns(timings.decode_ms),
    }


def _ns(duration_ms: float | None) -> int:
    return round((duration_ms or 0.0) * 1e6)
