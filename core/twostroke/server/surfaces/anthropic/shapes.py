"""Anthropic's shapes: messages, their blocks, the usage, and errors."""

from __future__ import annotations

from typing import Any

from twostroke.errors import ContextLengthError, TwostrokeError
from twostroke.model import ReadAnswer
from twostroke.server.answers import Answer
from twostroke.server.call_arguments import arguments_object
from twostroke.server.turn import Turn
from twostroke.types import FinishedEvent, FinishReason

_ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(error: TwostrokeError) -> dict[str, Any]:
    """Anthropic's error object; its type follows the status.

    Agents make room in a conversation where a message begins with "prompt is too long".
    """
    other = "invalid_request_error" if error.status < 500 else "api_error"
    is_too_long = isinstance(error, ContextLengthError)
    message = str(error).removeprefix("The ") if is_too_long else str(error)
    told = {"type": _ERRORS.get(error.status, other), "message": message}
    return {"type": "error", "error": told}


def message_id(turn: Turn) -> str:
    """The id of an answer."""
    return f"msg_{turn.request_id}"


def message_head(turn: Turn) -> dict[str, Any]:
    """What of a message is known before its first token; it has no content yet."""
    return {
        "id": message_id(turn),
        "type": "message",
        "role": "assistant",
        "model": turn.model.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(turn),
    }


def whole_message(turn: Turn, whole: Answer, *, shows_thinking: bool) -> dict[str, Any]:
    """A whole answer."""
    parts = whole.parts
    return {
        **message_head(turn),
        "content": _blocks(turn, parts, shows_thinking=shows_thinking),
        **stop_facts(turn, whole.finished, called=bool(parts.tool_calls)),
        "usage": usage(turn),
    }


def stop_facts(turn: Turn, finished: FinishedEvent, *, called: bool) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`."""
    return {
        "stop_reason": _stop_reason(turn, finished, called=called),
        "stop_sequence": finished.stop_string,
    }


def usage(turn: Turn) -> dict[str, int]:
    """The counts so far. `input_tokens` are those of the prompt that were not in the KV cache.

    What was in it is known when the answer has ended; before that nothing counts as cached.
    """
    num_cached = turn.num_cached_tokens
    return {
        "input_tokens": turn.num_prompt_tokens - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": turn.num_completion_tokens,
    }


def thinking_block(text: str, signature: str) -> dict[str, str]:
    """What the model thought. The signature proves nothing; clients expect one."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def tool_block(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function."""
    given = arguments_object(arguments)
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def _blocks(turn: Turn, parts: ReadAnswer, *, shows_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if parts.reasoning:
        thought = parts.reasoning if shows_thinking else ""
        blocks.append(thinking_block(thought, message_id(turn)))
    if parts.text:
        blocks.append({"type": "text", "text": parts.text})
    return blocks + [tool_block(call.id, call.name, call.arguments) for call in parts.tool_calls]


def _stop_reason(turn: Turn, finished: FinishedEvent, *, called: bool) -> str:
    if finished.stop_string is not None:
        return "stop_sequence"
    if finished.reason is FinishReason.LENGTH:
        limit = turn.choices[0].request.sampling.max_tokens
        is_limit = limit is not None and finished.num_completion_tokens >= limit
        return "max_tokens" if is_limit else "model_context_window_exceeded"
    return "tool_use" if called else "end_turn"
