"""A series that never grows beyond a few entries, however much is added to it.

It keeps everything while there is room; then neighbours are joined in pairs, and each entry stands
for twice as many of what was added. What can be summed stays exact, only the resolution halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_ENTRIES = 16  # even, so that pairs come out


class BoundedSeries(Generic[T]):
    """Owns at most `MAX_ENTRIES` entries. Adding costs constant time on average."""

    def __init__(self, join: Callable[[T, T], T]) -> None:
        """`join` makes one entry of two neighbours, the earlier one first."""
        self._join = join
        self._entries: list[T] = []
        self._num_added = 0
        self._num_each = 1  # additions that an entry stands for

    def __len__(self) -> int:
        return self._num_added

    @property
    def entries(self) -> tuple[T, ...]:
        """The entries in order; the last may stand for fewer additions than the others."""
        return tuple(self._entries)

    def add(self, entry: T) -> None:
        """Adds one more. Mutates self."""
        if self._num_added % self._num_each:
            self._entries[-1] = self._join(self._entries[-1], entry)
        else:
            if len(self._entries) == MAX_ENTRIES:
                pairs = zip(self._entries[::2], self._entries[1::2], strict=True)
                self._entries = [self._join(one, other) for one, other in pairs]
                self._num_each *= 2
            self._entries.append(entry)
        self._num_added += 1
