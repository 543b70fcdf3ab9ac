"""Values between tags, turned into JSON: text as it is, everything else as the schema has it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from twostroke.text.parsers.markers import MarkerSplitter
from twostroke.text.parsers.python_value import PythonValue

_NAMES = {str: "string", bool: "boolean", type(None): "null"}
_ALTERNATIVES = ("anyOf", "oneOf")
_DESCRIBE_NOTHING = frozenset({"title", "description", "default", "examples", "format"})


class TaggedValue(ABC):
    """A value up to its closing tag; one line break on either side is none of it."""

    def __init__(self, end: str) -> None:
        """`end` is the closing tag."""
        self.is_over = False
        self._ends = ["\n" + end, end]
        self._splitter = MarkerSplitter()
        self._is_untouched = True

    def push(self, char: str) -> str:
        """Takes a character; the JSON that it makes certain. Mutates self."""
        self._splitter.push(char)
        text, marker = self._splitter.take(self._ends)
        self.is_over = marker is not None
        return self._json_of(self._trimmed(text))

    def finish(self) -> str:
        """What is left of a value that was cut off. Mutates self."""
        return self._rest_of(self._trimmed(self._splitter.take_all()))

    def _trimmed(self, text: str) -> str:
        if text and self._is_untouched:
            self._is_untouched = False
            return text.removeprefix("\n")
        return text

    @abstractmethod
    def _json_of(self, text: str) -> str: ...

    @abstractmethod
    def _rest_of(self, text: str) -> str: ...


class TextValue(TaggedValue):
    """Text: a JSON string while it is written."""

    _is_open = False

    def _json_of(self, text: str) -> str:
        before = "" if self._is_open else '"'
        self._is_open = True
        return before + _inner(text) + ('"' if self.is_over else "")

    def _rest_of(self, text: str) -> str:
        return _inner(text)


class WholeValue(TaggedValue):
    """JSON, or what Python writes for it; text where it is neither. Written when it is whole."""

    def __init__(self, end: str, types: frozenset[str]) -> None:
        super().__init__(end)
        self._types = types
        self._text = ""

    def _json_of(self, text: str) -> str:
        self._text += text
        return _converted(self._text, self._types) if self.is_over else ""

    def _rest_of(self, text: str) -> str:
        return (self._text + text).strip()


def value_of(schema: Any, end: str) -> TaggedValue:
    """A value that `schema` describes (None: nothing does), up to the tag `end`."""
    types = types_of(schema)
    return TextValue(end) if types == {"string"} else WholeValue(end, types)


def types_of(schema: Any) -> frozenset[str]:
    """The JSON types that a schema names: text where it says nothing, none where it is unclear."""
    if not isinstance(schema, Mapping) or not schema.keys() - _DESCRIBE_NOTHING:
        return frozenset({"string"})
    found: set[str] = set()
    named = schema.get("type")
    found |= {named} if isinstance(named, str) else set(named or ())
    if named is None:
        values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
        found |= {_NAMES.get(type(value), "other") for value in values}
        for name in _ALTERNATIVES:
            for each in schema.get(name, ()):
                found |= types_of(each)
    return frozenset(found)


def _converted(text: str, types: frozenset[str]) -> str:
    """`text` as JSON; a text among other types is one where it is none of them."""
    word = text.strip()
    if types <= {"string", "null"} and types:
        return "null" if word in ("null", "None") else json.dumps(text, ensure_ascii=False)
    if _is_json(word):
        return word
    value = PythonValue()
    for char in word:
        value.push(char)
    value.finish()
    json_text = value.take()
    is_text = "string" in types or value.is_over or not _is_json(json_text)
    return json.dumps(text, ensure_ascii=False) if is_text else json_text


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)  # NaN and its like are no JSON


def _inner(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
