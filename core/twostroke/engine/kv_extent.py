"""How large the arrays of a KV cache are: buckets of rows and of tokens a row.

Where memory costs what was allocated, not what was written (devices), the arrays hold the rows and
tokens that are in use, rounded up so that they seldom change: both numbers are powers of two, or
what the memory plan allows at most. All rows are equally long, because decode runs bind neighbours
as one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_ROW_TOKENS = 256
"""Shorter rows are not worth another size: one of the demo model takes 11 MiB."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows, and the tokens that each has room for."""

    num_rows: int
    row_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens that memory is taken for."""
        return self.num_rows * self.row_tokens

    def covers(self, other: Extent) -> bool:
        """Whether nothing of the other lies outside."""
        return self.num_rows >= other.num_rows and self.row_tokens >= other.row_tokens

    def joined(self, other: Extent) -> Extent:
        """The smallest that covers both."""
        return Extent(max(self.num_rows, other.num_rows), max(self.row_tokens, other.row_tokens))

    def common(self, other: Extent) -> Extent:
        """What both cover."""
        return Extent(min(self.num_rows, other.num_rows), min(self.row_tokens, other.row_tokens))


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes that the arrays of one KV cache may have; `full` is what the plan allows.

    `can_shrink` False: they only grow, because runs that are recorded over them stay for good.
    """

    full: Extent
    least_row_tokens: int = LEAST_ROW_TOKENS
    can_shrink: bool = True

    @property
    def least(self) -> Extent:
        """What is allocated when nothing is held."""
        return self.holding(1, 0)

    def holding(self, num_rows: int, num_tokens: int) -> Extent:
        """The smallest for rows of `num_tokens` tokens.

        A row has one position more: one that idles in a decode run is written to there.
        """
        row_tokens = max(_power_of_two(num_tokens + 1), self.least_row_tokens)
        return Extent(
            min(_power_of_two(max(num_rows, 1)), self.full.num_rows),
            min(row_tokens, self.full.row_tokens),
        )


class Room:
    """What the arrays of one KV cache have become.

    `needs`: what each row holds or may become, in tokens; 0 for a free one.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.extent = buckets.least

    def clear(self) -> None:
        """Notes that the arrays are new, and hold nothing."""
        self.extent = self._buckets.least

    def wanted(self, needs: Sequence[int]) -> tuple[Extent, ...]:
        """What the arrays should become before rows are used, the best first; none: they have room.

        Growing in both directions saves another change; where a device has no memory for that, rows
        that nobody uses go for longer ones, and the other way round.
        """
        needed = self._needed(needs)
        if self.extent.covers(needed):
            return ()
        return tuple(dict.fromkeys((self.extent.joined(needed), needed)))

    def idle(self, needs: Sequence[int]) -> Extent | None:
        """What the arrays may shrink to when nobody is in a hurry; None: as they are.

        Twice as long as is needed, so that the next turn of a chat still fits.
        """
        if not self._buckets.can_shrink:
            return None
        needed = self._needed([2 * num_tokens for num_tokens in needs])
        return None if needed.covers(self.extent) else self.extent.common(needed)

    def unfit(self, needs: Sequence[int]) -> list[int]:
        """The rows that the arrays have no room for."""
        return [
            row
            for row, num_tokens in enumerate(needs)
            if num_tokens and not self.extent.covers(Extent(row + 1, num_tokens + 1))
        ]

    def _needed(self, needs: Sequence[int]) -> Extent:
        num_rows = max((row + 1 for row, num_tokens in enumerate(needs) if num_tokens), default=1)
        return self._buckets.holding(num_rows, max(needs))


def _power_of_two(number: int) -> int:
    """The smallest that is not below `number`, a positive one."""
    return 1 << (number - 1).bit_length()
