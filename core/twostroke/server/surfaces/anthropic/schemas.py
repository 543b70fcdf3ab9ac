"""What Anthropic's fields look like inside, for the description of the server; checks nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from twostroke.server.fields import Messages

_BLOCKS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string", "examples": ["text"]}},
    },
}
_TEXT_BLOCKS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {"anyOf": [{"type": "string"}, {**_BLOCKS, "minItems": 1}]},
    },
}
_TOOL = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "name": {"type": "string"},
        "description": {"type": ["string", "null"]},
        "input_schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
_CHOICE = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["auto", "any", "tool", "none"]},
        "name": {"description": "of the tool, a string"},
        "disable_parallel_tool_use": {"type": ["boolean", "null"]},
    },
}
_NULL = {"type": "null"}


Conversation = Annotated[
    Messages, WithJsonSchema({"type": "array", "minItems": 1, "items": _MESSAGE})
]
System = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_BLOCKS, _NULL]})]
Tools = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "array", "items": _TOOL}, _NULL]})]
Choice = Annotated[Any, WithJsonSchema({"anyOf": [_CHOICE, _NULL]})]
