"""Calls and their results in a conversation, and how models without a form for them read both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.text.tools import Tool
from twostroke.text.valid_unicode import check_unicode

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_PREAMBLE = """\
You may call functions. They are described by JSON within <tools></tools>:
<tools>
{tools}
</tools>
To call one, answer with its name and its arguments as JSON within <tool_call></tool_call>:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


class Arguments(dict[str, Any]):
    """The arguments of a call, for templates: an object, and its JSON wherever it becomes text.

    Some templates go through it or apply `tojson`; others add it to a text as it came.
    """

    def __str__(self) -> str:
        return _dumped(dict(self))

    def __add__(self, after: str) -> str:
        return str(self) + after

    def __radd__(self, before: str) -> str:
        return before + str(self)


def for_templates(
    messages: Sequence[Mapping[str, Any]], reasoning_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Checked messages with `Arguments`, and with reasoning by the names that a template has."""
    shown = [dict(message) for message in messages]
    for message in shown:
        calls = message.get("tool_calls", ())
        # gpt-oss refuses both beside a call: what was said before it takes the place of a thought.
        is_told = "reasoning_content" in message and not (calls and message["content"])
        for name in reasoning_names if is_told else ():
            message[name] = message["reasoning_content"]
        if calls:
            message["tool_calls"] = [_for_template(call) for call in calls]
    return shown


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose ids of calls have nine letters and digits, as Mistral's templates insist on.

    Ids of that form stay; others, which another server may have made, are replaced, the same one
    by the same.
    """
    shown = [dict(message) for message in messages]
    for message in shown:
        if "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"])
        if "tool_calls" in message:
            calls = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
            message["tool_calls"] = calls
    return shown


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _for_template(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function["arguments"], Mapping):
        function["arguments"] = Arguments(function["arguments"])
    return {**call, "function": function}


def check_calls(calls: Any, path: str) -> list[dict[str, Any]]:
    """The `tool_calls` of an assistant's message as chat templates expect them.

    Arguments become an object where they are JSON of one, and stay text where a model erred.

    Raises:
        RequestError: they are not OpenAI's calls.
    """
    if isinstance(calls, str | bytes) or not isinstance(calls, Sequence):
        raise RequestError(f"{path} must be a list of calls.", param=path)
    return [_check_call(call, f"{path}[{i}]") for i, call in enumerate(calls)]


def _check_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RequestError(
            f'{path} must be {{"id": …, "type": "function", "function": {{"name": …, '
            '"arguments": …}}.',
            param=path,
        )
    call_id, arguments = call.get("id"), function.get("arguments")
    if call_id is not None and not isinstance(call_id, str):
        raise RequestError(f"{path}.id must be a string.", param=f"{path}.id")
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise RequestError(
            f"{path}.function.arguments must be JSON, as a string.",
            param=f"{path}.function.arguments",
        )
    for text in (name, call_id or "", arguments if isinstance(arguments, str) else ""):
        check_unicode(text, path)
    parsed = {"name": name, "arguments": _parsed(arguments)}
    return {"id": call_id or "", "type": "function", "function": parsed}


def _parsed(arguments: str | Mapping[str, Any] | None) -> Any:
    if arguments is None or isinstance(arguments, Mapping):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def name_results(messages: Sequence[dict[str, Any]]) -> None:
    """Gives each result the name of the function that its call named. Mutates the messages."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            found = names.get(message["tool_call_id"])
            if found is not None:
                message["name"] = found


def in_plain_roles(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """The conversation for a template that knows neither functions nor calls.

    The functions are told in the system message, calls are text of the assistant, results come
    from the user; all in the form of Hermes, which small models have mostly seen.
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("is_result"):
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result, "is_result": True})
            continue
        calls = [
            f"<tool_call>\n{_dumped(call['function'])}\n</tool_call>"
            for call in message.get("tool_calls", ())
        ]
        content = "\n".join([part for part in (message["content"], *calls) if part])
        plain.append({"role": message["role"], "content": content})
    plain = [{"role": each["role"], "content": each["content"]} for each in plain]
    if not tools:
        return plain
    preamble = _PREAMBLE.format(tools="\n".join(_dumped(tool.as_template()) for tool in tools))
    if plain[0]["role"] == "system":
        told = "\n\n".join(part for part in (plain[0]["content"], preamble) if part)
        return [{"role": "system", "content": told}, *plain[1:]]
    return [{"role": "system", "content": preamble}, *plain]


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
