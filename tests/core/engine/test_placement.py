from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.kv_cache import KVCache, RowState
from twostroke.engine.placement import Placement, added_rows, choose_row
from twostroke.engine.spans import split_spans


def make(rows: str) -> KVCache:
    """One character a row: T taken, k kept with 100 tokens, K with 900, anything else free."""
    cache = KVCache(len(rows), row_tokens=1000, num_tokens=1000 * len(rows))
    for row, kind in enumerate(rows):
        if kind in "TkK":
            cache.reserve(1000)
            cache.take(row, 1000, length={"T": 10, "k": 100, "K": 900}[kind])
        if kind in "kK":
            cache.release(row, keep=True)
    cache.reserve(1000)
    return cache


@pytest.mark.parametrize(
    ("rows", "source", "num_tokens", "lost", "expected"),
    [
        ("....", None, 0, None, Placement(0, None, is_copied=False)),
        ("k...", None, 0, None, Placement(1, None, is_copied=False)),
        ("kkkk", None, 0, 2, Placement(2, None, is_copied=False)),
        # Alone, a sequence stays where its prefix is.
        ("..k.", 2, 100, 2, Placement(2, None, is_copied=False)),
        # Beside others it goes next to them, and its prefix with it.
        ("TT..k", 4, 100, 4, Placement(2, None, is_copied=True)),
        ("TTk..", 2, 100, 2, Placement(2, None, is_copied=False)),
        ("T...", 0, 10, None, Placement(1, None, is_copied=True)),
        # What is kept between running rows makes room: in a free row, or in the one that goes.
        ("TkT.", None, 0, None, Placement(1, 3, is_copied=False)),
        ("TkTK", None, 0, 3, Placement(1, 3, is_copied=False)),
        ("TKT.k", 4, 100, 4, Placement(1, 3, is_copied=True)),
        # A long row that is worth keeping moves as a whole, and the sequence stays in its place.
        ("TKT..", 1, 50, None, Placement(1, 4, is_copied=False)),
        # Nowhere to go for what is kept there: its prefix would be overwritten.
        ("TKTk", 3, 100, 3, Placement(3, None, is_copied=False)),
    ],
)
def test_the_cheapest_row_is_chosen(rows, source, num_tokens, lost, expected):
    assert choose_row(make(rows), source, num_tokens, lost, packs_rows=True) == expected


def test_where_rows_run_alone_nothing_is_copied_to_pack_them():
    chosen = choose_row(make("TT..k"), 4, 100, 4, packs_rows=False)
    assert chosen == Placement(4, None, is_copied=False)


@given(st.sets(st.integers(0, 12), min_size=1), st.integers(0, 12))
def test_added_rows_is_what_the_spans_grow_by(taken, row):
    taken -= {row}
    if not taken:
        return
    grown = [split_spans(sorted(rows)) for rows in (taken, taken | {row})]
    before, after = (sum(n for _, n in spans) + 3 * (len(spans) - 1) for spans in grown)
    assert added_rows(sorted(taken), row) == after - before - 1


@given(st.lists(st.sampled_from("TkK."), min_size=1, max_size=9), st.data())
def test_no_choice_loses_a_row_that_should_stay(kinds, data):
    cache = make("".join([*kinds, "."]) if "T" * len(kinds) == "".join(kinds) else "".join(kinds))
    kept, free = cache.rows(RowState.KEPT), cache.rows(RowState.FREE)
    known = [*kept, *cache.rows(RowState.TAKEN)]
    source = data.draw(st.sampled_from([None, *known]))
    num_tokens = 0 if source is None else cache.length(source)
    may_lose = ([None] if free else []) + kept
    lost = data.draw(st.sampled_from(may_lose))
    chosen = choose_row(cache, source, num_tokens, lost, packs_rows=data.draw(st.booleans()))
    assert cache.state(chosen.row) is not RowState.TAKEN
    if chosen.row in kept and chosen.row != lost:
        assert chosen.moved_to in ({*free, lost} - {chosen.row, None})
        assert chosen.moved_to != source  # it is read after that
    else:
        assert chosen.moved_to is None
    assert chosen.is_copied == (num_tokens > 0 and chosen.row != source)
