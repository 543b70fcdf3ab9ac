from __future__ import annotations

import pytest

from twostroke.engine.kv_cache import KVCache


def test_the_lowest_free_row_is_taken_first():
    cache = KVCache(num_rows=3, row_tokens=8, num_tokens=24)
    assert [cache.reserve(4), cache.reserve(4), cache.reserve(4)] == [0, 1, 2]
    assert cache.reserve(1) is None
    cache.release(2)
    cache.release(0)
    assert cache.reserve(4) == 0
    cache.check()


def test_the_budget_counts_reservations_not_rows():
    cache = KVCache(num_rows=8, row_tokens=100, num_tokens=150)
    assert cache.reserve(100) == 0
    assert cache.reserve(51) is None
    assert cache.reserve(50) == 1
    cache.release(0)
    assert cache.reserve(100) == 0


def test_lengths_grow_and_are_forgotten_with_the_row():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    row = cache.reserve(5)
    assert row is not None
    cache.advance(row, 3)
    cache.advance(row, 1)
    assert cache.length(row) == cache.num_used_tokens == 4
    assert cache.span_lengths(0, 2) == [4, 0]
    cache.release(row)
    assert cache.span_lengths(0, 2) == [0, 0]
    cache.check()


def test_growing_over_the_reservation_and_freeing_twice_are_caught():
    cache = KVCache(num_rows=1, row_tokens=8, num_tokens=8)
    row = cache.reserve(2)
    assert row is not None
    with pytest.raises(AssertionError, match="row 0 grew to 3 of 2"):
        cache.advance(row, 3)
    cache.release(row)
    with pytest.raises(AssertionError, match="freed twice"):
        cache.release(row)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("_free", [0, 0, 1], "free twice"),
        ("_lengths", [0, 3], "row 1 is free with 3"),
        ("_num_reserved_tokens", 7, "tokens are reserved"),
    ],
)
def test_check_catches_a_broken_cache(field, value, fault):
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    setattr(cache, field, value)
    with pytest.raises(AssertionError, match=fault):
        cache.check()
