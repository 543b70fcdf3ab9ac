"""One call as a JSON object, read character by character so that its arguments can stream."""

from __future__ import annotations

import enum
import json

NAME_KEYS = ("name", "function", "function_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_SPACE = " \t\r\n"


class _At(enum.Enum):
    KEY = enum.auto()  # a key, or the end of the object
    COLON = enum.auto()
    VALUE = enum.auto()  # before a value
    INSIDE = enum.auto()  # in a value
    AFTER = enum.auto()  # behind a value
    END = enum.auto()


class JsonValue:
    """Knows where a JSON value ends. Its text is kept as it is written."""

    def __init__(self, first: str) -> None:
        self.text = first
        self._depth = int(first in "[{")
        self._in_string = first == '"'
        self._is_scalar = first not in '[{"'
        self._is_escaped = False
        self.is_whole = False

    @property
    def is_string(self) -> bool:
        """Whether it is a JSON string."""
        return self.text.startswith('"')

    def push(self, char: str) -> bool:
        """Takes a character; False where it lies behind the value. Mutates self."""
        if self._is_scalar and char in _SPACE + ",}]":
            self.is_whole = True
            return False
        self.text += char
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
                self.is_whole = self._depth == 0
        elif char == '"':
            self._in_string = True
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
            self.is_whole = self._depth == 0
        return True


class CallObject:
    """`{"name": …, "arguments": {…}}`, its keys in any order, others beside them ignored.

    `text` is all that was read. `name` is None until it is known. What `take_arguments` answers
    are the arguments as they are written; those written as a string that holds JSON are unpacked.
    """

    def __init__(self) -> None:
        self.text = ""
        self.name: str | None = None
        self.is_over = False
        self.is_broken = False
        self._at = _At.KEY
        self._key = ""
        self._value: JsonValue | None = None
        self._has_arguments = False
        self._arguments = ""

    def push(self, char: str) -> None:
        """Takes the next character, the first being `{`. Mutates self."""
        self.text += char
        if len(self.text) == 1:
            self.is_broken = char != "{"
        elif self._value is not None:
            self._push_value(char)
        elif char not in _SPACE:
            self._push_between(char)

    def take_arguments(self) -> str:
        """The arguments' text since the last call. Mutates self."""
        taken, self._arguments = self._arguments, ""
        return taken

    def _push_value(self, char: str) -> None:
        value = self._value
        assert value is not None
        was_taken = value.push(char)
        is_key = self._at is _At.KEY
        if not is_key and self._key in ARGUMENT_KEYS and not value.is_string and was_taken:
            self._arguments += char
        if value.is_whole:
            self._value = None
            if is_key:
                self._end_key(value.text)
            else:
                self._end_value(value)
        if not was_taken and char not in _SPACE:
            self._push_between(char)

    def _push_between(self, char: str) -> None:
        at = self._at
        if at is _At.KEY and char == '"':
            self._value = JsonValue(char)
        elif at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif at is _At.VALUE and char not in ",}]:":
            self._at, self._value = _At.INSIDE, JsonValue(char)
            if self._key in ARGUMENT_KEYS:
                self._has_arguments = True
                self._arguments += char if char != '"' else ""
        elif at is _At.AFTER and char == ",":
            self._at = _At.KEY
        elif at in (_At.AFTER, _At.KEY) and char == "}":
            self._end()
        else:
            self.is_broken = True

    def _end_key(self, written: str) -> None:
        self._key = _string(written) or ""
        self._at = _At.COLON

    def _end_value(self, value: JsonValue) -> None:
        self._at = _At.AFTER
        if self._key in NAME_KEYS and value.is_string:
            self.name = _string(value.text)
            self.is_broken = not self.name
        elif self._key in ARGUMENT_KEYS and value.is_string:
            held = _string(value.text)
            self._arguments += value.text if held is None else held

    def _end(self) -> None:
        self._at = _At.END
        self.is_over = True
        self.is_broken = self.name is None
        if not self._has_arguments:
            self._arguments += "{}"


def _string(written: str) -> str | None:
    """The value of a JSON string; None where it is none."""
    try:
        value = json.loads(written, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
