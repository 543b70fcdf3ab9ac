"""OpenAI's older form of tools: `functions`, `function_call`, and messages of the role `function`.

It is turned into tools on the way in, and back on the way out; it knows one call an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.text.tools import ToolUse, tool_use


def asked_functions(functions: Any, choice: Any) -> ToolUse | None:
    """What `functions` and `function_call` ask for.

    Raises:
        RequestError: with the path of the field at fault as `param`.
    """
    if functions is not None and not isinstance(functions, list):
        raise RequestError("functions must be a list of functions.", param="functions")
    tools = [{"type": "function", "function": each} for each in functions or ()]
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": choice}
    elif choice not in (None, "none", "auto"):
        raise RequestError(
            'function_call must be "none", "auto" or {"name": …}.', param="function_call"
        )
    try:
        return tool_use(tools, choice, parallel=False)
    except RequestError as error:
        raise RequestError(
            _renamed(str(error)), param=_renamed(error.param or "functions")
        ) from None


def _renamed(text: str) -> str:
    text = text.replace("].function", "]").replace("tool_choice", "function_call")
    return text.replace("tools", "functions")


def current_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with their older calls and results as calls and results of tools."""
    current: list[Mapping[str, Any]] = []
    call_id = ""
    for number, message in enumerate(messages):
        call, role = message.get("function_call"), message.get("role")
        if role == "assistant" and call:
            call_id = f"call_{number}"
            called = {"id": call_id, "type": "function", "function": call}
            others = {name: value for name, value in message.items() if name != "function_call"}
            current.append({"content": None, **others, "tool_calls": [called]})
        elif role == "function":
            current.append({**message, "role": "tool", "tool_call_id": call_id})
        else:
            current.append(message)
    return current


def older_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its call, where it has one, in the older form."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "function_call": calls[0]["function"]}


def older_delta(delta: dict[str, Any]) -> dict[str, Any]:
    """The `delta` of a chunk in the older form."""
    calls = delta.get("tool_calls")
    return {"function_call": calls[0]["function"]} if calls else delta


def older_reason(reason: str) -> str:
    """A finish reason in the older form."""
    return "function_call" if reason == "tool_calls" else reason
