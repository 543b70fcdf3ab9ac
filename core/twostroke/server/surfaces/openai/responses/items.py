"""The items of a conversation as clients send them, checked and brought to one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from twostroke.errors import RequestError

Item = Mapping[str, Any]
FindItem = Callable[[str], Item | None]
"""An item of a stored response, by its id; None where there is none."""

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_MEDIA = {"input_image": "images", "input_file": "files", "input_audio": "audio"}
_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def new_item_id(prefix: str) -> str:
    """A fresh id, e.g. `msg_…`."""
    return f"{prefix}_{uuid4().hex}"


def check_items(value: Any, find: FindItem) -> list[Item]:
    """`input` as a list of items in one form, each with an id; references are looked up.

    Raises:
        RequestError: with the path of the field at fault (`input[1].content[0]`) as `param`.
    """
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list):
        what = "is missing; it" if value is None else ""
        raise RequestError(f"input {what} must be a string or a list of items.", param="input")
    if not value:
        raise RequestError("input is an empty list; send at least one item.", param="input")
    return [_item(item, f"input[{i}]", find) for i, item in enumerate(value)]


def _item(item: Any, path: str, find: FindItem) -> Item:
    if not isinstance(item, Mapping):
        raise RequestError(f"{path} must be an object with a type.", param=path)
    is_reference = set(item) == {"id"}
    kind = item.get("type", "item_reference" if is_reference else "message")
    if kind == "message":
        return _message(item, path)
    if kind == "function_call":
        return _call(item, path)
    if kind == "function_call_output":
        return _result(item, path)
    if kind == "reasoning":
        return _reasoning(item, path)
    if kind == "item_reference":
        found = find(_string(item, "id", path))
        if found is None:
            raise RequestError(
                f"{path}.id names no item of a response that is stored here; send the item itself.",
                param=f"{path}.id",
            )
        return found
    raise RequestError(
        f"{path}.type {str(kind)[:40]!r} is not supported; known are {', '.join(_KINDS)}.",
        param=f"{path}.type",
        code="unsupported_parameter",
    )


def _message(item: Item, path: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}.", param=f"{path}.role")
    kind = "output_text" if role == "assistant" else "input_text"
    parts = _parts(item.get("content"), kind, f"{path}.content")
    return {
        "id": _id(item, "msg", path),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": parts,
    }


def _call(item: Item, path: str) -> Item:
    return {
        "id": _id(item, "fc", path),
        "type": "function_call",
        "status": "completed",
        **{name: _string(item, name, path) for name in ("call_id", "name", "arguments")},
    }


def _result(item: Item, path: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _parts(output, "input_text", f"{path}.output")
    return {
        "id": _id(item, "fco", path),
        "type": "function_call_output",
        "status": "completed",
        "call_id": _string(item, "call_id", path),
        "output": output,
    }


def _reasoning(item: Item, path: str) -> Item:
    """Of a summary only the text is kept, for where the thought itself is not there."""
    kept: dict[str, list[dict[str, str]]] = {}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = item.get(name) or []
        is_text = isinstance(parts, list) and all(
            isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts
        )
        if not is_text:
            raise RequestError(
                f"{path}.{name} must be a list of parts with a text.", param=f"{path}.{name}"
            )
        kept[name] = [{"type": kind, "text": part["text"]} for part in parts]
    return {"id": _id(item, "rs", path), "type": "reasoning", **kept}


def _parts(content: Any, kind: str, path: str) -> list[dict[str, Any]]:
    """Content as a list of texts, of `kind`."""
    if isinstance(content, str):
        return [_text(content, kind)]
    if not isinstance(content, list):
        raise RequestError(f"{path} must be a string or a list of text parts.", param=path)
    return [_part(part, kind, f"{path}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, kind: str, path: str) -> dict[str, Any]:
    found = part.get("type") if isinstance(part, Mapping) else None
    if found in _MEDIA:
        raise RequestError(
            f"{path}: {_MEDIA[found]} are not supported (part of type {found!r}); send text parts.",
            param=path,
        )
    if found == "refusal" and isinstance(part.get("refusal"), str):
        return _text(part["refusal"], kind)
    if found not in _TEXTS or not isinstance(part.get("text"), str):
        raise RequestError(
            f'{path} must be a text part, {{"type": {kind!r}, "text": "…"}}.', param=path
        )
    return _text(part["text"], kind)


def _text(text: str, kind: str) -> dict[str, Any]:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _id(item: Item, prefix: str, path: str) -> str:
    given = item.get("id")
    return new_item_id(prefix) if given is None else _string(item, "id", path)


def _string(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        what = "is missing" if value is None else "must be a string"
        raise RequestError(f"{path}.{name} {what}.", param=f"{path}.{name}")
    return value
