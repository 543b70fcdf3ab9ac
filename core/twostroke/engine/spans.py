"""Which neighbouring rows share one run of the decode graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_HOLE_ROWS = 3
"""A wider hole is left out at the price of one more run.

On CPUs one more run costs about as much as three or four idle rows: measured decode steps of
13, 24 and 35 ms at batch 1, 4 and 8 are roughly 10 ms + 3 ms a row.
"""

ATTENDED_ROW_TOKENS = 400
"""An idle row attends to what it holds: so many tokens cost about as much as one more row.

Attention over 1,024 tokens takes 8 ms of a decode step of the same model, a row without 3 ms.
"""


def block_of(start: int, count: int, num_rows: int) -> tuple[int, int]:
    """The block of rows that holds a span: a power of two long and aligned to it, or up to the end.

    Where runs are recorded each kind is recorded once, and blocks are fewer than twice the rows.
    """
    size = 1
    while start // size != (start + count - 1) // size:
        size *= 2
    first = start // size * size
    return first, min(size, num_rows - first)


def split_spans(
    rows: Sequence[int],
    *,
    max_hole_rows: int = MAX_HOLE_ROWS,
    max_span_rows: int | None = None,
    length: Callable[[int], int] = lambda row: 0,
) -> list[tuple[int, int]]:
    """Covers `rows` (ascending, distinct) by spans (start, count) that hold few idle rows.

    `max_span_rows` 1 gives one span a row, for devices without views of rows. `length` tells the
    tokens that an idle row holds: one of many tokens counts as several.
    """
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans:
            start, count = spans[-1]
            hole = range(start + count, row)
            idle_tokens = sum(length(idle) for idle in hole) if len(hole) <= max_hole_rows else 0
            is_near = len(hole) + idle_tokens / ATTENDED_ROW_TOKENS <= max_hole_rows
            if is_near and (max_span_rows is None or row - start < max_span_rows):
                spans[-1] = (start, row - start + 1)
                continue
        spans.append((row, 1))
    return spans
