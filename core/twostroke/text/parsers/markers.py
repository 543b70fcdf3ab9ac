"""Finds markers in a stream of text, however it is split into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class MarkerSplitter:
    """Splits off the text before the first of some markers. No part of a marker ever leaks."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> None:
        """Takes more text. Mutates self."""
        self._held += text

    def take(self, markers: Sequence[str]) -> tuple[str, str | None]:
        """The text up to the first marker, and the marker, which is taken away as well.

        Without one: the text that can't be the beginning of a marker, and None; the rest is held.
        Of two markers at one place the longer wins. Mutates self.
        """
        found = [
            (at, -len(marker), marker) for marker in markers if (at := self._held.find(marker)) >= 0
        ]
        if found:
            at, _, marker = min(found)
            text, self._held = self._held[:at], self._held[at + len(marker) :]
            return text, marker
        cut = len(self._held) - max((_overlap(self._held, marker) for marker in markers), default=0)
        text, self._held = self._held[:cut], self._held[cut:]
        return text, None

    def push_back(self, text: str) -> None:
        """Puts text before what is held. Mutates self."""
        self._held = text + self._held

    @property
    def held(self) -> str:
        """What has not been taken yet."""
        return self._held

    def take_all(self) -> str:
        """Everything that is held. Mutates self."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of `text` that begins `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
