"""Calls whose arguments have tags of their own, as Qwen3-Coder writes them.

    <tool_call>
    <function=NAME>
    <parameter=ARGUMENT>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value is text or JSON; the function's schema says which. Text becomes JSON while it is written.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import Any

from twostroke.text.parsers.call_section import CallSection
from twostroke.text.parsers.spec import ArgumentTags, CallForm
from twostroke.text.parsers.tagged_values import TaggedValue, value_of

_MAX_WORD_CHARS = 512
_NAME = re.compile(r"[\w.:/-]{1,128}")


class _At(enum.Enum):
    NAME = enum.auto()
    BETWEEN = enum.auto()  # before an argument, or the end of the call
    KEY = enum.auto()
    VALUE = enum.auto()
    AFTER = enum.auto()  # behind a call


class TaggedCalls(CallSection):
    """The reader of a section of such calls."""

    def __init__(
        self,
        form: CallForm,
        marker: str,
        index: int,
        only: frozenset[str] | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(form, marker, index, only)
        assert form.argument is not None, "a form of this style has tags for arguments"
        self._tags: ArgumentTags = form.argument
        self._schemas = schemas or {}
        tags = self._tags.before_value.split()  # there may be white space between them, or none
        self._before_value = re.compile(r"\s*".join(map(re.escape, tags)) + "$")
        self._end_of_call = form.after.strip().split("\n")[0]
        self._at = _At.NAME
        self._word = ""
        self._schema: Mapping[str, Any] = {}  # of the call that is read
        self._has_arguments = False
        self._value: TaggedValue | None = None

    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""
        self._raw += char
        if self._value is not None:
            self._push_value(self._value, char)
            return
        self._word += char
        word = self._word.strip()
        if self._at is _At.NAME:
            self._read_name(word)
        elif self._at is _At.BETWEEN:
            self._read_between(word)
        elif self._at is _At.KEY:
            self._read_key(word)
        else:
            self._read_after(word)

    def finish(self) -> None:
        """The answer has ended within the section. Mutates self."""
        if self._value is not None:
            self._argue(self._value.finish())
        elif not self.num_calls:
            super().finish()

    def _read_name(self, word: str) -> None:
        form = self._form
        end = form.before_arguments.strip()
        opening = form.before_name.removeprefix(form.begin).strip()
        text = self._word.lstrip()
        # Without a marker the line's end is the end of the name, or the tag that follows.
        is_over = word.endswith(end) if end else text[-1:] in ("\n", "<") and len(text) > 1
        rest = "<" if not end and text.endswith("<") else ""
        head = word.removesuffix(end or "<").removeprefix(opening).strip()
        is_begun = opening.startswith(word[: len(opening)])
        if not is_begun or len(word) > _MAX_WORD_CHARS:
            self._give_up()
        elif is_over and len(word) > len(opening):
            if not _NAME.fullmatch(head) or (self._only is not None and head not in self._only):
                self._give_up()
                return
            self._word, self._at, self._has_arguments = rest, _At.BETWEEN, False
            self._schema = self._schemas.get(head, {})
            self._announce(head)

    def _read_between(self, word: str) -> None:
        before_key = self._tags.before_name.strip()
        if word == before_key:
            self._word, self._at = "", _At.KEY
        elif word == self._end_of_call:
            self._word, self._at = "", _At.AFTER
            self._argue("}" if self._has_arguments else "{}")
            self._end_call()
            if self._end_of_call == self._form.end:
                self._leave("")
        elif word and not before_key.startswith(word) and not self._end_of_call.startswith(word):
            self._give_up()

    def _read_key(self, word: str) -> None:
        end = self._before_value.search(word)
        if len(word) > _MAX_WORD_CHARS:
            self._give_up()
        elif end is not None:
            key = word[: end.start()].strip()
            self._word, self._at = "", _At.VALUE
            self._argue(f"{', ' if self._has_arguments else '{'}{json.dumps(key)}: ")
            self._has_arguments = True
            self._value = value_of(_property(self._schema, key), self._tags.after.strip())

    def _push_value(self, value: TaggedValue, char: str) -> None:
        self._argue(value.push(char))
        if value.is_over:
            self._value, self._at = None, _At.BETWEEN

    def _read_after(self, word: str) -> None:
        opening = self._form.before_name.removeprefix(self._form.begin).strip()
        if word == self._form.end:
            self._leave("")
        elif word and word == opening:
            self._at = _At.NAME  # one more call in the same section
        elif word and not self._form.end.startswith(word) and not opening.startswith(word):
            self._give_up()

    def _give_up(self) -> None:
        """Ends the section; of a call that has been announced only the last word is left over."""
        self._leave(self._word if self.num_calls else self._raw)


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
