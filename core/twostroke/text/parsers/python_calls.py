"""Calls as Python writes them: `[add(a=1, b="x"), now()]`.

The arguments are turned into JSON while they are written. What is no list of calls of functions
that may be called is content.
"""

from __future__ import annotations

import enum
import json
import re

from twostroke.text.parsers.call_section import CallSection
from twostroke.text.parsers.python_value import PythonValue

_SPACE = " \t\r\n"
_MAX_WORD_CHARS = 128
_KEY = re.compile(r"[A-Za-z_]\w*")


class _At(enum.Enum):
    LIST = enum.auto()  # before the list
    NAME = enum.auto()
    KEY = enum.auto()  # an argument's name, or the end of the call
    VALUE = enum.auto()
    AFTER = enum.auto()  # behind a call
    END = enum.auto()  # behind the list


class PythonCalls(CallSection):
    """The reader of a list of calls."""

    _at = _At.LIST
    _word = ""
    _value: PythonValue | None = None
    _has_arguments = False

    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""
        self._raw += char
        if self._value is not None:
            self._push_value(self._value, char)
        elif char in _SPACE and not self._word:
            pass
        elif self._at is _At.LIST:
            self._at = _At.NAME if char == "[" else _At.LIST
            if char != "[":
                self._give_up(char)
        elif self._at is _At.NAME:
            self._push_name(char)
        elif self._at is _At.KEY:
            self._push_key(char)
        elif self._at is _At.AFTER:
            self._push_after(char)
        else:
            self._push_end(char)

    def finish(self) -> None:
        """The answer has ended within the section. Mutates self."""
        if self._value is not None:
            self._value.finish()
            self._argue(self._value.take())
        elif not self.num_calls:
            super().finish()

    def _push_name(self, char: str) -> None:
        if char != "(":
            self._word += char
            is_name = len(self._word) <= _MAX_WORD_CHARS and not set(char) & set("[]{}'\"=,")
            if not is_name or (self._only and not self._may_be_called(self._word)):
                self._give_up(self._word)
            return
        name, self._word = self._word.strip(), ""
        if not name or (self._only is not None and name not in self._only):
            self._give_up(name + char)
            return
        self._announce(name)
        self._at, self._has_arguments = _At.KEY, False

    def _may_be_called(self, beginning: str) -> bool:
        return any(name.startswith(beginning.strip()) for name in self._only or ())

    def _push_key(self, char: str) -> None:
        if char == ")" and not self._word:
            self._argue("}" if self._has_arguments else "{}")
            self._end_call()
            self._at = _At.AFTER
        elif char == ",":
            self._word = ""
        elif char != "=":
            self._word += char
            if len(self._word) > _MAX_WORD_CHARS or not _KEY.fullmatch(self._word.strip()):
                self._give_up(self._word)
        else:
            key, self._word = self._word.strip(), ""
            self._argue(f"{', ' if self._has_arguments else '{'}{json.dumps(key)}: ")
            self._has_arguments = True
            self._at, self._value = _At.VALUE, PythonValue()

    def _push_value(self, value: PythonValue, char: str) -> None:
        value.push(char)
        self._argue(value.take())
        if value.is_over:
            self._at, self._value = _At.KEY, None
            self._push_key(char)

    def _push_after(self, char: str) -> None:
        if char == ",":
            self._at = _At.NAME
        elif char == "]" and self._form.end:
            self._at = _At.END
        elif char == "]":
            self._leave("")
        else:
            self._give_up(char)

    def _push_end(self, char: str) -> None:
        self._word += char
        if self._word == self._form.end:
            self._leave("")
        elif not self._form.end.startswith(self._word):
            self._give_up(self._word)

    def _give_up(self, unread: str) -> None:
        """Ends the section; of a call that has been announced only `unread` is left over."""
        self._leave(unread if self.num_calls else self._raw)
