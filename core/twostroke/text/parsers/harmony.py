"""The channels of gpt-oss ("harmony"): each message has a header, then its text.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|channel|>final<|message|>…<|return|>

Source of the format: OpenAI's "Harmony response format" guide.
"""

from __future__ import annotations

import re

from twostroke.text.parsers.call_section import merged, up_to
from twostroke.text.parsers.markers import MarkerSplitter
from twostroke.text.parsers.spec import (
    CallArguments,
    CallBegin,
    Content,
    Delta,
    ParserSpec,
    Reasoning,
    Setup,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
CONTROL = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class Harmony:
    """The parser of gpt-oss. See `SectionParser`."""

    def __init__(self, spec: ParserSpec, setup: Setup) -> None:
        self._names = setup.function_names
        self._is_restricted = setup.is_restricted
        self._max_calls = setup.max_calls
        self._splitter = MarkerSplitter()
        self._header: str | None = ""  # None: in a message's text
        self._channel = "final"
        self._num_calls = 0
        self._is_call = False

    def push(self, text: str) -> list[Delta]:
        """What the next piece of text makes certain. Mutates self."""
        self._splitter.push(text)
        deltas: list[Delta] = []
        marker: str | None = ""
        while marker is not None:
            text, marker = self._splitter.take(CONTROL)
            self._take(text, deltas)
            if marker is not None:
                self._turn(marker, deltas)
        return merged(up_to(deltas, self._max_calls))

    def finish(self) -> list[Delta]:
        """What was held back; the answer has ended. Mutates self."""
        deltas: list[Delta] = []
        self._take(self._splitter.take_all(), deltas)
        header = self._header or ""
        if header and CHANNEL not in header and START not in header:
            deltas.append(Content(header))  # no channels at all
        self._header = ""
        return merged(up_to(deltas, self._max_calls))

    def _take(self, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        if self._header is not None:
            self._header += text
        elif self._is_call:
            deltas.append(CallArguments(self._num_calls - 1, text))
        else:
            deltas.append(Reasoning(text) if self._channel == "analysis" else Content(text))

    def _turn(self, marker: str, deltas: list[Delta]) -> None:
        if marker == MESSAGE and self._header is not None:
            self._open(self._header, deltas)
            self._header = None
        elif marker in ENDS:
            self._header = ""
        else:
            self._header = (self._header or "") + marker

    def _open(self, header: str, deltas: list[Delta]) -> None:
        words = header.rpartition(CHANNEL)[2].split()
        self._channel = words[0] if words else "final"
        recipient = _RECIPIENT.search(header)
        is_known = recipient is not None and recipient[1] in self._names
        self._is_call = bool(self._names) and recipient is not None
        self._is_call &= is_known or not self._is_restricted
        if recipient is not None and self._is_call:
            deltas.append(CallBegin(self._num_calls, recipient[1]))
            self._num_calls += 1
