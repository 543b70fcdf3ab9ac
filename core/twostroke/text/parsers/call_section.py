"""A section of calls, read character by character.

What is no call at all comes out as content, its marker included: nothing is lost, nothing raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from twostroke.text.parsers.call_object import CallObject, JsonValue
from twostroke.text.parsers.spec import (
    CallArguments,
    CallBegin,
    CallForm,
    Content,
    Delta,
    Reasoning,
)

_SPACE = " \t\r\n"
_BETWEEN = "[],;" + _SPACE
_MAX_GLUE_CHARS = 512


class CallSection(ABC):
    """Calls from behind their marker to the end of their section.

    `is_over` says that it has ended; `rest` is what was read and lies behind it.
    """

    def __init__(
        self, form: CallForm, marker: str, index: int, only: frozenset[str] | None = None
    ) -> None:
        """`marker` has been read; `index` is the first call's. Other names than `only` are none."""
        self.is_over = False
        self.rest = ""
        self.num_calls = 0  # that have begun
        self._form = form
        self._only = only
        self._first_index = index
        self._raw = marker  # since the end of the last call
        self._is_announced = False
        self._deltas: list[Delta] = []

    @abstractmethod
    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""

    def finish(self) -> None:
        """The answer has ended within the section. Mutates self."""
        if not self._is_announced:
            self._leave(self._raw)

    def take(self) -> list[Delta]:
        """The deltas since the last call. Mutates self."""
        taken, self._deltas = self._deltas, []
        return taken

    def _announce(self, name: str) -> None:
        self._is_announced = True
        self.num_calls += 1
        self._deltas.append(CallBegin(self._index, name))

    def _argue(self, text: str) -> None:
        if text:
            self._deltas.append(CallArguments(self._index, text))

    def _end_call(self) -> None:
        self._is_announced, self._raw = False, ""

    def _leave(self, rest: str) -> None:
        """Ends the section before `rest`; where there was no call, all of it is content."""
        self.is_over = True
        if self.num_calls:
            self.rest = rest
        else:
            self._deltas.append(Content(self._raw))

    @property
    def _index(self) -> int:
        return self._first_index + self.num_calls - 1


class ObjectCalls(CallSection):
    """Calls that are JSON objects, alone, in a list, or with separators between them."""

    _object: CallObject | None = None
    _held = ""  # what may be the beginning of the end's marker

    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""
        self._raw += char
        if self._object is not None:
            self._push_object(self._object, char)
        elif char == "{" and not self._held:
            self._object = CallObject()
            self._object.push(char)
        elif self._held or char not in _BETWEEN:
            self._push_end(char)

    def finish(self) -> None:
        """The answer has ended within the section. Mutates self."""
        if not (self.num_calls and self._object is None and self._form.end.startswith(self._held)):
            super().finish()

    def _push_end(self, char: str) -> None:
        self._held += char
        if self._held == self._form.end:
            self._leave("")
        elif not self._form.end.startswith(self._held):
            self._leave(self._held)

    def _push_object(self, call: CallObject, char: str) -> None:
        call.push(char)
        if call.name is not None and not self._is_announced and not call.is_broken:
            if self._only is not None and call.name not in self._only:
                self._leave(self._raw)
                return
            self._announce(call.name)
        if self._is_announced:
            self._argue(call.take_arguments())
        if call.is_broken:
            # Of a call that has been announced, only what can't be read is left over.
            self._leave(char if self._is_announced else self._raw)
        elif call.is_over:
            self._object = None
            self._end_call()


class NamedCalls(CallSection):
    """Calls whose name stands between markers, before arguments that are JSON."""

    _value: JsonValue | None = None
    _glue = ""  # markers and names, since the last value

    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""
        self._raw += char
        if self._value is not None:
            was_taken = self._value.push(char)
            self._argue(char if was_taken else "")
            if self._value.is_whole:
                self._value, self._glue = None, "" if was_taken else char
                self._end_call()
        elif self._is_announced:
            if char not in _SPACE:
                self._value = JsonValue(char)
                self._argue(char)
        else:
            self._glue += char
            self._read_glue()

    def finish(self) -> None:
        """The answer has ended within the section. Mutates self."""
        if not self.num_calls:
            super().finish()

    def _read_glue(self) -> None:
        form, glue = self._form, self._glue
        if form.end and glue.endswith(form.end):
            self._leave("")
            return
        before_arguments = form.before_arguments.strip()
        if glue.endswith(before_arguments):
            head = glue.removesuffix(before_arguments)
            if form.before_id:
                head = head.partition(form.before_id)[0]
            before_name = form.before_name.strip()
            name = (head.rpartition(before_name)[2] if before_name else head).strip()
            self._glue = ""
            if name and (self._only is None or name in self._only):
                self._announce(name)
            else:
                self._leave(self._raw if self.num_calls else glue)
            return
        opening = (form.separator or "").strip() + form.before_name.strip()
        stripped = glue.lstrip()
        is_other = not form.end and not (opening.startswith(stripped[: len(opening)]))
        if (self.num_calls and is_other) or len(glue) > _MAX_GLUE_CHARS:
            self._leave(glue)


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbours of one kind put together."""
    out: list[Delta] = []
    for delta in deltas:
        match out[-1] if out else None, delta:
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                out[-1] = CallArguments(index, before + text)
            case Content(before), Content(text):
                out[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                out[-1] = Reasoning(before + text)
            case _:
                out.append(delta)
    return out


def up_to(deltas: Sequence[Delta], max_calls: int | None) -> list[Delta]:
    """`deltas`, without what belongs to a call behind `max_calls`."""
    return [
        delta
        for delta in deltas
        if max_calls is None
        or not isinstance(delta, CallBegin | CallArguments)
        or delta.index < max_calls
    ]
