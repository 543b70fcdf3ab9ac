"""Which row a sequence gets, and what must be copied for it.

Rows in use should lie close together, because a decode step pays for every row between the first
and the last; copying tokens from row to row costs far less than computing them. So a sequence may
get any row that nobody uses: what is kept there moves to another one first, and its own prefix is
copied in, unless the row is the one that holds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.engine.kv_cache import KVCache, RowState
from twostroke.engine.spans import MAX_HOLE_ROWS

IDLE_ROW_TOKENS = 16384
"""One more row in each step of an answer costs about as much as copying so many tokens.

A row adds 3 ms to a decode step of the demo model on a CPU, over perhaps 50 steps; a token is
copied in 10 microseconds (46 kB, read and written).
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """A row for a sequence. `moved_to`: where what is kept in it goes first, None: nowhere.

    `is_copied`: the sequence's prefix comes from another row.
    """

    row: int
    moved_to: int | None
    is_copied: bool


def choose_row(
    cache: KVCache, source: int | None, num_tokens: int, lost: int | None, *, packs_rows: bool
) -> Placement:
    """The row that costs least for a sequence that begins with `num_tokens` tokens of `source`.

    `lost` is a kept row whose tokens may go; None where a free row is there to be used. With
    `packs_rows` the sequence should be near those that run.
    """
    taken, free = cache.rows(RowState.TAKEN), cache.rows(RowState.FREE)
    # What must make room goes where it is in nobody's way.
    refuge = lost if lost is not None and lost != source else _refuge(cache, free)
    best: tuple[int, Placement] | None = None
    for row in sorted({*free, *cache.rows(RowState.KEPT)}):
        moves = row not in free and row != lost
        if moves and refuge is None:
            continue
        is_copied = num_tokens > 0 and row != source
        cost = cache.length(row) * moves + num_tokens * is_copied
        if packs_rows:
            cost += added_rows(taken, row) * IDLE_ROW_TOKENS
        if best is None or cost < best[0]:
            best = cost, Placement(row, refuge if moves else None, is_copied)
    assert best is not None  # a promise means that a row is there
    return best[1]


def _refuge(cache: KVCache, free: Sequence[int]) -> int | None:
    """The last free row that costs no memory on a device; where there is none, the first."""
    room = cache.room
    there = [row for row in free if room is None or row < room.extent.num_rows]
    return there[-1] if there else next(iter(free), None)


def added_rows(taken: Sequence[int], row: int) -> int:
    """By how many rows decode runs grow if `row` joins `taken` (ascending); see `split_spans`.

    Negative where it closes a gap that cost more than the row itself.
    """
    place = bisect_left(taken, row)
    before = taken[place - 1] if place > 0 else None
    after = taken[place] if place < len(taken) else None
    if before is None and after is None:
        return 0
    left = 0 if before is None else _gap(before, row)
    right = 0 if after is None else _gap(row, after)
    joined = _gap(before, after) if before is not None and after is not None else 0
    return left + right - joined


def _gap(row: int, next_row: int) -> int:
    return min(next_row - row - 1, MAX_HOLE_ROWS)  # a wider one is another run, which costs as much
