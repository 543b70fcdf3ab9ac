"""Anthropic's conversation as the messages that chat templates take.

| Anthropic | becomes |
|---|---|
| `system`: text, or blocks of text | a message of the system before all others |
| blocks of text | the message's text, joined as they are |
| `tool_use` | a call of the assistant's message |
| `tool_result` | a message of role `tool`, where it stands; one with `is_error` says so first |
| `thinking` | the assistant's reasoning, which templates show or leave out |
| `redacted_thinking`, `cache_control`, citations | nothing |

Neighbours of one role are one turn, as Anthropic has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from twostroke.errors import RequestError

_ROLES = ("user", "assistant", "system")
_BETWEEN_MESSAGES = "\n\n"
_KNOWN = {
    "user": "text and tool_result blocks",
    "assistant": "text, tool_use and thinking blocks",
    "system": "text blocks",
}


def conversation(system: Any, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with a role and a content; see the module for what becomes of each block.

    Raises:
        RequestError: naming the block at fault, e.g. `messages[0].content[1]`.
    """
    turns: list[dict[str, Any]] = []
    told = "" if system is None else _text_of(system, "system")
    if told:
        turns.append({"role": "system", "content": told})
    for number, message in enumerate(messages):
        for turn in _turns(message, f"messages[{number}]"):
            _add(turns, turn)
    if turns[-1]["role"] == "assistant" and ("tool_calls" in turns[-1] or len(turns) == 1):
        last = f"messages[{len(messages) - 1}]"
        raise RequestError(
            f"{last} is the assistant's and "
            f"{'has calls' if len(turns) > 1 else 'the only one'}: an answer goes on from text "
            "behind other messages. End with a message of the user.",
            param=last,
        )
    return turns


def _add(turns: list[dict[str, Any]], turn: dict[str, Any]) -> None:
    """Appends a turn, or joins it to the last one of the same role. Mutates `turns`."""
    last = turns[-1] if turns else None
    if last is None or last["role"] != turn["role"] or turn["role"] == "tool":
        turns.append(turn)
        return
    for name in ("content", "reasoning_content"):
        both = [text for text in (last.get(name), turn.get(name)) if text]
        if both:
            last[name] = _BETWEEN_MESSAGES.join(both)
    calls = [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]
    if calls:
        last["tool_calls"] = calls


def _turns(message: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """What one message is: of a user's, each result of a call is a turn of its own."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}.", param=f"{path}.role")
    path = f"{path}.content"
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif not isinstance(content, list) or not content:
        raise RequestError(f"{path} must be a string or a list of blocks.", param=path)
    elif role == "assistant":
        yield _assistant(content, path)
    else:
        yield from _user(content, path, str(role))


def _user(blocks: Sequence[Any], path: str, role: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for number, block in enumerate(blocks):
        where = f"{path}[{number}]"
        if role == "user" and _kind(block) == "tool_result":
            if texts:
                yield {"role": role, "content": "".join(texts)}
                texts = []
            yield _result(block, where)
        else:
            texts.append(_text(block, where, _KNOWN[role]))
    if texts:
        yield {"role": role, "content": "".join(texts)}


def _assistant(blocks: Sequence[Any], path: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": ""}
    thoughts, calls = [], []
    for number, block in enumerate(blocks):
        where = f"{path}[{number}]"
        match _kind(block):
            case "thinking":
                thoughts.append(_string(block, "thinking", where))
            case "redacted_thinking":
                continue
            case "tool_use":
                calls.append(_call(block, where))
            case _:
                turn["content"] += _text(block, where, _KNOWN["assistant"])
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{path}.input must be an object.", param=f"{path}.input")
    function = {"name": _string(block, "name", path), "arguments": arguments}
    return {"id": _string(block, "id", path), "type": "function", "function": function}


def _result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else _text_of(content, f"{path}.content")
    if block.get("is_error") is True:  # templates have no other place for it
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", path), "content": text}


def _text_of(content: Any, path: str) -> str:
    """A string, or blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{path} must be a string or a list of text blocks.", param=path)
    return "".join(_text(block, f"{path}[{i}]", "text blocks") for i, block in enumerate(content))


def _text(block: Any, path: str, known: str) -> str:
    if _kind(block) != "text":
        _refuse(block, path, known)
    return _string(block, "text", path)


def _kind(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else None


def _string(block: Mapping[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{path}.{name} must be a string.", param=f"{path}.{name}")
    return value


def _refuse(block: Any, path: str, known: str) -> NoReturn:
    kind = _kind(block)
    if kind in ("image", "document"):
        raise RequestError(f"{path}: {kind}s are not supported; send text.", param=path)
    found = "has no type" if kind is None else f"is of type {kind[:40]!r}"
    raise RequestError(f"{path} {found}; taken here are {known}.", param=path)
