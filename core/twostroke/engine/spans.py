"""Which neighbouring rows share one run of the decode graph."""

from __future__ import annotations

from collections.abc import Sequence

MAX_HOLE_ROWS = 3
"""A wider hole is left out at the price of one more run.

On CPUs one more run costs about as much as three or four idle rows: measured decode steps of
13, 24 and 35 ms at batch 1, 4 and 8 are roughly 10 ms + 3 ms a row.
"""


def split_spans(
    rows: Sequence[int], *, max_hole_rows: int = MAX_HOLE_ROWS, max_span_rows: int | None = None
) -> list[tuple[int, int]]:
    """Covers `rows` (ascending, distinct) by spans (start, count) that hold few idle rows.

    `max_span_rows` 1 gives one span a row, for devices without views of rows.
    """
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans:
            start, count = spans[-1]
            is_near = row - (start + count) <= max_hole_rows
            if is_near and (max_span_rows is None or row - start < max_span_rows):
                spans[-1] = (start, row - start + 1)
                continue
        spans.append((row, 1))
    return spans
