"""The chat messages that the items of a conversation mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.server.surfaces.openai.responses.items import Item

_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}  # within a turn of the assistant


def check_results(context: Sequence[Item], given: Sequence[Item]) -> None:
    """Checks that each result among `given` has its call before it, there or in `context`.

    Raises:
        RequestError: naming the first that has none.
    """
    called = {item["call_id"] for item in context if item["type"] == "function_call"}
    for i, item in enumerate(given):
        if item["type"] == "function_call":
            called.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in called:
            raise RequestError(
                f"input[{i}].call_id {item['call_id'][:80]!r} names no function_call before it; "
                "send the call too, or the previous_response_id of the response that made it.",
                param=f"input[{i}].call_id",
            )


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The chat messages of a conversation.

    What an assistant thought, said and called, in this order, is one message.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        if item["type"] == "function_call_output":
            content = _joined(item["output"])
            told = {"role": "tool", "tool_call_id": item["call_id"], "content": content}
            messages.append(told)
        elif item["type"] == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _joined(item["content"])})
        else:
            _say(messages, item)
    return messages


def _say(messages: list[dict[str, Any]], item: Item) -> None:
    """Adds to the assistant's last message, or begins one. Mutates `messages`."""
    order = _ORDER[item["type"]]
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if last is None or _reached(last) > order or (_reached(last) == order == 1):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if item["type"] == "reasoning":
        thought = _joined(item.get("content") or item.get("summary") or "")
        last["reasoning_content"] = last.get("reasoning_content", "") + thought
    elif item["type"] == "message":
        last["content"] = _joined(item["content"])
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)


def _reached(message: Mapping[str, Any]) -> int:
    if "tool_calls" in message:
        return _ORDER["function_call"]
    return _ORDER["message" if message["content"] else "reasoning"]


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
