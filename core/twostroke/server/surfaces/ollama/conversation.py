"""Ollama's messages as those that chat templates take.

Calls have their arguments as an object, and mostly no ids: a result says by `tool_name` what it is
of. Ids are made here, so that templates that want them find calls and results paired: a result
belongs to the first call of its name that has none yet, else to the first that has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError

_ROLES = ("system", "user", "assistant", "tool")


class _Calls:
    """The calls of a conversation that have no result yet: their ids and names, in order."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._num_calls = 0

    def add(self, name: str, given_id: Any) -> str:
        """The id of a call. Mutates self."""
        call_id = given_id if isinstance(given_id, str) and given_id else f"call_{self._num_calls}"
        self._num_calls += 1
        self._open.append((call_id, name))
        return call_id

    def answer(self, name: Any, given_id: Any) -> str:
        """The id of the call that a result is of. Mutates self."""
        found = next((c for c in self._open if c[0] == given_id), None)
        found = found or next((c for c in self._open if c[1] == name), None)
        found = found or next(iter(self._open), None)
        if found is None:
            return given_id if isinstance(given_id, str) else ""
        self._open.remove(found)
        return found[0]


def conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with a role and a content, calls and reasoning by the names of `check_messages`.

    Raises:
        RequestError: naming the field at fault, e.g. `messages[0].images`.
    """
    calls = _Calls()
    return [_message(each, f"messages[{i}]", calls) for i, each in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str, calls: _Calls) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}.", param=f"{path}.role")
    if message.get("images"):
        raise RequestError(
            f"{path}.images: images are not supported; send text.", param=f"{path}.images"
        )
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{path}.content must be a string.", param=f"{path}.content")
    made: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        if isinstance(message.get("thinking"), str) and message["thinking"]:
            made["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            made["tool_calls"] = _made_calls(message["tool_calls"], f"{path}.tool_calls", calls)
    if role == "tool":
        name = message.get("tool_name") or message.get("name")
        made["tool_call_id"] = calls.answer(name, message.get("tool_call_id"))
        if isinstance(name, str):
            made["name"] = name
    return made


def _made_calls(value: Any, path: str, calls: _Calls) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise RequestError(f"{path} must be a list of calls.", param=path)
    made = []
    for number, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise RequestError(
                f'{path}[{number}] must be {{"function": {{"name": …, "arguments": {{…}}}}}}.',
                param=f"{path}[{number}]",
            )
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise RequestError(
                f"{path}[{number}].function.arguments must be an object.",
                param=f"{path}[{number}].function.arguments",
            )
        told = {"name": name, "arguments": arguments or {}}
        call_id = calls.add(name, call.get("id"))
        made.append({"id": call_id, "type": "function", "function": told})
    return made
