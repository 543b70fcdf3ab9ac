"""Reads reasoning and calls as a `ParserSpec` describes them, piece by piece.

White space beside a section belongs to neither side and is dropped.
"""

from __future__ import annotations

from twostroke.text.parsers.call_section import CallSection, merged, up_to
from twostroke.text.parsers.call_styles import FIRST_OF_BARE, open_section
from twostroke.text.parsers.markers import MarkerSplitter
from twostroke.text.parsers.spec import (
    Content,
    Delta,
    ParserSpec,
    Reasoning,
    Setup,
    Tag,
    active_tags,
    open_tag,
)


class Sections:
    """The parser of families that data describe. See `SectionParser`."""

    def __init__(self, spec: ParserSpec, setup: Setup) -> None:
        self._tags = {tag.begin: tag for tag in active_tags(spec, setup.template)}
        self._setup = setup
        forms = [spec.calls, *spec.other_calls] if setup.function_names else []
        self._forms = [form for form in forms if form is not None]
        self._begins = {form.begin: form for form in reversed(self._forms) if form.begin}
        self._splitter = MarkerSplitter()
        self._open: Tag | None = open_tag(tuple(self._tags.values()), setup.prompt_tail)
        self._calls: CallSection | None = None
        self._num_calls = 0
        self._space = ""  # white space that is dropped if a section follows
        self._is_beside = self._open is not None  # white space that comes is dropped
        self._is_untouched = True  # nothing but white space so far

    def push(self, text: str) -> list[Delta]:
        """What the next piece of text makes certain. Mutates self."""
        self._splitter.push(text)
        deltas: list[Delta] = []
        while self._read(deltas):
            pass
        return merged(up_to(deltas, self._setup.max_calls))

    def finish(self) -> list[Delta]:
        """What was held back; the answer has ended. Mutates self."""
        deltas: list[Delta] = []
        if self._calls is not None:
            self._calls.finish()
            self._close_calls(self._calls, deltas, "")
        while self._read(deltas):
            pass
        self._emit(self._splitter.take_all(), deltas)
        if self._space and self._open is None:
            deltas.append(Content(self._space))
        self._space = ""
        return merged(up_to(deltas, self._setup.max_calls))

    def _read(self, deltas: list[Delta]) -> bool:
        """Reads up to the next marker; False where there is none yet."""
        if self._calls is not None:
            return self._read_calls(self._calls, deltas)
        if self._begins_bare():
            return True
        if self._open is not None:
            text, marker = self._splitter.take([self._open.end])
        else:
            text, marker = self._splitter.take([*self._tags, *self._begins])
        self._emit(text, deltas)
        if marker is None:
            return False
        space, self._space = self._space, ""
        self._is_beside, self._is_untouched = True, False
        if self._open is not None:
            is_wrapper = self._open.kind == "content"
            self._open, self._is_untouched = None, not is_wrapper
        elif marker in self._tags:
            self._open = self._tags[marker]
        else:
            form = self._begins[marker]
            self._calls = open_section(form, space + marker, self._num_calls, self._setup)
        return True

    def _begins_bare(self) -> bool:
        held = self._splitter.held.lstrip()
        if not held or not self._is_untouched or self._open is not None:
            return False
        for form in self._forms:
            if form.is_bare and held.startswith(FIRST_OF_BARE[form.style]):
                self._is_untouched = False
                self._calls = open_section(form, "", self._num_calls, self._setup, is_bare=True)
                return True
        return False

    def _read_calls(self, calls: CallSection, deltas: list[Delta]) -> bool:
        text = self._splitter.take_all()
        for position, char in enumerate(text, start=1):
            calls.push(char)
            if calls.is_over:
                self._close_calls(calls, deltas, text[position:])
                return True
        deltas += calls.take()
        return False

    def _close_calls(self, calls: CallSection, deltas: list[Delta], behind: str) -> None:
        deltas += calls.take()
        self._num_calls += calls.num_calls
        self._calls, self._is_beside = None, calls.num_calls > 0
        self._splitter.push_back(calls.rest + behind)

    def _emit(self, text: str, deltas: list[Delta]) -> None:
        """Text of the section that is open; white space waits for what follows it."""
        text = self._space + text
        if self._is_beside:
            text = text.lstrip()
        shown = text.rstrip() if self._open is not None or self._forms else text
        self._space = text[len(shown) :]
        if not shown:
            return
        self._is_beside = False
        if self._open is not None and self._open.kind == "reasoning":
            deltas.append(Reasoning(shown))
        else:
            self._is_untouched = False
            deltas.append(Content(shown))
