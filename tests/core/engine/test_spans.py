from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.spans import block_of, split_spans


def test_neighbours_share_a_span_and_a_wide_hole_splits_it():
    assert split_spans([]) == []
    assert split_spans([5]) == [(5, 1)]
    assert split_spans([0, 1, 2]) == [(0, 3)]
    assert split_spans([0, 4], max_hole_rows=3) == [(0, 5)]
    assert split_spans([0, 5], max_hole_rows=3) == [(0, 1), (5, 1)]


def test_one_span_a_row_where_rows_have_no_views():
    assert split_spans([0, 1, 3], max_span_rows=1) == [(0, 1), (1, 1), (3, 1)]


@given(st.sets(st.integers(0, 40)), st.integers(0, 5), st.none() | st.integers(1, 8))
def test_every_row_is_in_exactly_one_span(rows, max_hole_rows, max_span_rows):
    spans = split_spans(sorted(rows), max_hole_rows=max_hole_rows, max_span_rows=max_span_rows)
    covered = [row for start, count in spans for row in range(start, start + count)]
    assert len(covered) == len(set(covered))
    assert rows <= set(covered)
    for start, count in spans:
        assert {start, start + count - 1} <= rows, "a span must begin and end with a row in use"
        assert max_span_rows is None or count <= max_span_rows


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 20))
def test_blocks_hold_their_span_and_are_few(start, count, spare):
    num_rows = start + count + spare
    first, size = block_of(start, count, num_rows)
    assert first <= start
    assert start + count <= first + size <= num_rows
    whole = 1 << (size - 1).bit_length()
    assert first % whole == 0
    assert size == whole or first + size == num_rows


def test_there_are_fewer_than_two_blocks_a_row():
    found = {block_of(s, c, 24) for s in range(24) for c in range(1, 25 - s)}
    assert len(found) < 2 * 24
    assert block_of(3, 2, 24) == (0, 8)
    assert block_of(5, 1, 24) == (5, 1)
