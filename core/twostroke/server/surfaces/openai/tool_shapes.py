"""Reasoning and calls of functions in OpenAI's shapes.

Reasoning goes by two names, which clients of DeepSeek's and of vLLM's surface read:
`reasoning_content` and `reasoning`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twostroke.model import ReadAnswer, ToolCall
from twostroke.text.parsers import CallArguments, CallBegin, Content, Delta, Reasoning
from twostroke.types import FinishedEvent, FinishReason


def finish_reason(finished: FinishedEvent, *, called: bool) -> str:
    """OpenAI's reason; an answer that ended with calls says `tool_calls`."""
    is_call = called and finished.reason is FinishReason.STOP
    return "tool_calls" if is_call else finished.reason.value


def whole_message(parts: ReadAnswer) -> dict[str, Any]:
    """The `message` of a choice; its content is null where there are calls and no text."""
    content = parts.text if parts.text or not parts.tool_calls else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if parts.reasoning:
        message |= _reasoning(parts.reasoning)
    if parts.tool_calls:
        message["tool_calls"] = [call_shape(call) for call in parts.tool_calls]
    return message


def call_shape(call: ToolCall) -> dict[str, Any]:
    """A whole call."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def delta_shape(delta: Delta, new_id: Callable[[], str]) -> dict[str, Any]:
    """The `delta` of a chunk; `new_id` makes the id of a call that begins."""
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return _reasoning(text)
        case CallBegin(index, name):
            begun = call_shape(ToolCall(new_id(), name))
            return {"tool_calls": [{"index": index, **begun}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text}
