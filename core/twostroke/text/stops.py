"""Stop strings: where a stream of text must be cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream of text before the first stop string in it, however it is split into pieces.

    The stop that is completed first wins; of two completed by the same character, the longer.
    Text is held back only while it may be the beginning of a stop string. Matching follows Knuth,
    Morris and Pratt (1977): constant time a character and stop string. `matched` is the stop string
    that ended the text, once one has.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = [stop for stop in stops if stop]
        self._borders = [_borders(stop) for stop in self._stops]
        self._lengths = [0] * len(self._stops)  # how much of each stop ends the text so far
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece; returns the text that may be shown and whether to stop.

        After a stop nothing is ever shown again. Mutates self.
        """
        if self.matched is not None:
            return "", True
        if not self._stops:
            return text, False
        self._held += text
        start = len(self._held) - len(text)
        for position in range(start, len(self._held)):
            longest = self._step(self._held[position])
            if longest:
                end = position + 1
                self.matched = self._held[end - longest : end]
                shown, self._held = self._held[: end - longest], ""
                return shown, True
        keep = max(self._lengths)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """Ends the stream and returns what was held back. Mutates self."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> int:
        """Feeds a character; returns the length of the longest stop it completes, or 0."""
        longest = 0
        for rank, stop in enumerate(self._stops):
            matched = self._lengths[rank]
            while matched and stop[matched] != char:
                matched = self._borders[rank][matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                longest = max(longest, matched)
            self._lengths[rank] = matched
        return longest


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that also ends it."""
    borders = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = borders[length - 1]
        length += stop[position] == stop[length]
        borders[position] = length
    return borders
