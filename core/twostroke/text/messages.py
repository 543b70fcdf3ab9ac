"""Chat messages as clients send them, checked and brought to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.text.tool_messages import check_calls, name_results
from twostroke.text.valid_unicode import check_unicode

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING = ("reasoning_content", "reasoning")
_MEDIA = ("image", "audio", "video", "file")


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages with a role and a text; the given ones are left alone.

    Besides, an assistant's have `tool_calls` and `reasoning_content` where they are given, and
    results of calls (role `tool`) a `tool_call_id` and the function's `name` where it is known.
    `developer` is OpenAI's newer name for `system` and becomes it. Text parts are joined as they
    are. Other names are dropped: templates don't agree on where they would go.

    Raises:
        RequestError: with the path of the field at fault (`messages[1].content`) as `param`.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list of messages", param="messages")
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    checked = [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    name_results(checked)
    return checked


def _check_message(message: Message, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{path} must be an object with a role and a content, not {_kind(message)}", param=path
        )
    for name, instead in (("function_call", "tool_calls"), ("audio", "its text")):
        if message.get(name):
            raise RequestError(
                f"{path}.{name} is not taken here; send {instead}", param=f"{path}.{name}"
            )
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        found = "is missing" if role is None else f"cannot be {_shown(role)}"
        raise RequestError(
            f"{path}.role {found}; it must be one of {', '.join(ROLES)}", param=f"{path}.role"
        )
    checked: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = message.get("tool_calls") if role == "assistant" else None
    # An answer that is nothing but calls has no text.
    is_silent = bool(calls) and message.get("content") is None
    content = "" if is_silent else _text(_said(message, role), f"{path}.content")
    check_unicode(content, f"{path}.content")
    checked["content"] = content
    if calls:
        checked["tool_calls"] = check_calls(calls, f"{path}.tool_calls")
    if role == "assistant":
        checked |= _reasoning(message, path)
    if role == "tool":
        checked |= _result(message, path)
    return checked


def _said(message: Message, role: str) -> Any:
    """The content; of an assistant that has refused, its refusal."""
    content, refusal = message.get("content"), message.get("refusal")
    is_refusal = role == "assistant" and content is None and isinstance(refusal, str)
    return refusal if is_refusal else content


def _reasoning(message: Message, path: str) -> dict[str, str]:
    for name in _REASONING:
        text = message.get(name)
        if isinstance(text, str) and text:
            check_unicode(text, f"{path}.{name}")
            return {"reasoning_content": text}
    return {}


def _result(message: Message, path: str) -> dict[str, str]:
    call_id, name = message.get("tool_call_id"), message.get("name")
    if not isinstance(call_id, str):
        raise RequestError(
            f"{path}.tool_call_id must be the id of the call that this is the result of",
            param=f"{path}.tool_call_id",
        )
    check_unicode(call_id, f"{path}.tool_call_id")
    if not isinstance(name, str) or not name:
        return {"tool_call_id": call_id}
    check_unicode(name, f"{path}.name")
    return {"tool_call_id": call_id, "name": name}


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise RequestError(f"{path} is missing; it must be a string", param=path)
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))
    raise RequestError(
        f"{path} must be a string or a list of text parts, not {_kind(content)}", param=path
    )


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and any(word in kind for word in _MEDIA):
        plural = next(word for word in _MEDIA if word in kind)
        plural = plural if plural == "audio" else f"{plural}s"
        raise RequestError(
            f"{path}: {plural} are not supported (part of type {_shown(kind)}); send text parts",
            param=path,
        )
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        raise RequestError(
            f'{path} must be a text part, {{"type": "text", "text": "…"}}', param=path
        )
    return str(part["text"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _kind(value: object) -> str:
    names = {"NoneType": "null", "bool": "a boolean", "int": "a number", "float": "a number"}
    names |= {"str": "a string", "list": "a list", "dict": "an object"}
    return names.get(type(value).__name__, type(value).__name__)
