"""The chunks in which one prompt was read, summed."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.life.bounded_series import BoundedSeries


class Chunks(NamedTuple):
    """Neighbouring chunks: positions [start, start + num_tokens), in seconds of the clock."""

    start: int
    num_tokens: int
    num_chunks: int
    started_at: float
    busy_s: float


class PromptChunks:
    """What the chunks took, without keeping each."""

    def __init__(self) -> None:
        self._series: BoundedSeries[Chunks] = BoundedSeries(_join)

    def __len__(self) -> int:
        return len(self._series)

    @property
    def entries(self) -> tuple[Chunks, ...]:
        """The chunks in order, neighbours together where there are many."""
        return self._series.entries

    @property
    def num_tokens(self) -> int:
        """Tokens that were computed."""
        return sum(each.num_tokens for each in self.entries)

    @property
    def busy_s(self) -> float:
        """Seconds in runs."""
        return sum(each.busy_s for each in self.entries)

    def add(self, start: int, num_tokens: int, started_at: float, ended_at: float) -> None:
        """One more chunk. Mutates self."""
        self._series.add(Chunks(start, num_tokens, 1, started_at, ended_at - started_at))


def _join(one: Chunks, other: Chunks) -> Chunks:
    return Chunks(
        one.start,
        one.num_tokens + other.num_tokens,
        one.num_chunks + other.num_chunks,
        one.started_at,
        one.busy_s + other.busy_s,
    )
