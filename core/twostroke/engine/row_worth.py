"""What kept rows are worth, and which one goes first when a row is needed: GreedyDual.

A row is worth what it would cost to compute again, which is the tokens that no other row holds, on
top of what the last row that went was worth when this one was last used (Young, "The k-server dual
and loose competitiveness for paging", 1994). So rows that nobody uses go down in comparison, and
among those the cheapest goes first.
"""

from __future__ import annotations

from collections.abc import Mapping


class RowWorth:
    """The kept rows with the moments they were last used in."""

    def __init__(self) -> None:
        self._floor = 0  # what the last row that went was worth
        self._used: dict[int, tuple[int, int]] = {}  # row: the floor then, and a running number
        self._num_uses = 0

    def rows(self) -> list[int]:
        """The rows, least recently used first."""
        return sorted(self._used, key=self._used.__getitem__)

    def use(self, row: int) -> None:
        """A row is kept from now on, or was used."""
        self._num_uses += 1
        self._used[row] = (self._floor, self._num_uses)

    def move(self, source: int, target: int) -> None:
        """What was kept in one row is in another."""
        self._used[target] = self._used.pop(source)

    def cheapest(self, unshared: Mapping[int, int]) -> int:
        """The row that is worth least, by the tokens that only it holds."""
        return min(self._used, key=lambda row: (self._worth(row, unshared), self._used[row]))

    def note_loss(self, row: int, unshared: Mapping[int, int]) -> None:
        """A row has to go: rows that are used from now on are worth more by what it was worth."""
        self._floor = max(self._floor, self._worth(row, unshared))

    def forget(self, row: int) -> None:
        """A row is not kept any more."""
        del self._used[row]

    def _worth(self, row: int, unshared: Mapping[int, int]) -> int:
        return self._used[row][0] + unshared[row]
