from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twostroke.engine.kv_cache import KVCache, RowState


def take(cache: KVCache, num_tokens: int, *, length: int = 0) -> int:
    assert cache.reserve(num_tokens)
    row = cache.rows(RowState.FREE)[0]
    cache.take(row, num_tokens, length=length)
    return row


def test_no_more_sequences_are_promised_a_row_than_there_are():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=24)
    assert cache.reserve(4)
    assert cache.reserve(4)
    assert not cache.reserve(1)
    cache.cancel(4)
    assert cache.reserve(4)
    cache.check()


def test_the_budget_counts_promises_not_rows():
    cache = KVCache(num_rows=8, row_tokens=100, num_tokens=150)
    row = take(cache, 100)
    assert not cache.reserve(51)
    assert cache.reserve(50)
    cache.release(row)
    assert cache.reserve(100)
    cache.check()


def test_lengths_grow_and_are_forgotten_with_the_row():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    row = take(cache, 5)
    cache.advance(row, 3)
    cache.advance(row, 1)
    assert cache.length(row) == cache.num_used_tokens == 4
    assert cache.span_lengths(0, 2) == [4, 0]
    cache.release(row)
    assert cache.span_lengths(0, 2) == [0, 0]
    assert cache.num_touched_tokens == 4
    cache.check()


def test_a_kept_row_holds_its_tokens_and_hinders_nobody():
    cache = KVCache(num_rows=1, row_tokens=8, num_tokens=8)
    row = take(cache, 8)
    cache.advance(row, 6)
    cache.release(row, keep=True)
    assert (cache.num_free_rows, cache.num_kept_rows, cache.num_kept_tokens) == (0, 1, 6)
    assert cache.num_used_tokens == 0
    assert cache.reserve(8)
    cache.take(row, 8, length=5)
    assert (cache.length(row), cache.num_kept_tokens) == (5, 0)
    cache.check()


def test_what_is_kept_beyond_the_budget_shows():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=10)
    row = take(cache, 6)
    cache.advance(row, 6)
    cache.release(row, keep=True)
    cache.reserve(7)
    cache.take(1, 7)
    assert cache.num_excess_tokens == 3
    with pytest.raises(AssertionError, match="3 tokens more than 10"):
        cache.check()
    cache.evict(row)
    cache.check()


def test_a_row_of_nothing_is_not_kept():
    cache = KVCache(num_rows=1, row_tokens=8, num_tokens=8)
    row = take(cache, 2)
    cache.release(row, keep=True)
    assert cache.state(row) is RowState.FREE


def test_only_what_nobody_can_use_is_a_tail():
    cache = KVCache(num_rows=3, row_tokens=8, num_tokens=24)
    for _ in range(3):
        cache.advance(take(cache, 8), 8)
    assert cache.idle_tails() == []
    for row in (0, 1, 2):
        cache.release(row, keep=row != 0)
    assert cache.idle_tails() == [(0, 0)]  # free: all of it
    cache.reserve(6)
    cache.take(1, 6, length=3)  # begins with three kept tokens, may become six
    assert cache.idle_tails() == [(0, 0), (1, 6)]
    assert [cache.note_given_back(row, held) for row, held in cache.idle_tails()] == [8, 2]
    assert (cache.num_touched_tokens, cache.idle_tails()) == (14, [])
    cache.release(1, keep=True)
    assert cache.idle_tails() == [(1, 3)]
    cache.check()


def test_a_cleared_cache_is_free_and_remembers_what_was_touched():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    cache.advance(take(cache, 8), 5)
    cache.release(0, keep=True)
    take(cache, 4)
    cache.clear()
    cache.check()
    assert (cache.num_free_rows, cache.num_used_tokens, cache.num_kept_tokens) == (2, 0, 0)
    assert cache.idle_tails() == [(0, 0)]
    assert cache.reserve(16)


def test_growing_over_the_reservation_and_freeing_twice_are_caught():
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    row = take(cache, 2)
    with pytest.raises(AssertionError, match="row 0 grew to 3 of 2"):
        cache.advance(row, 3)
    with pytest.raises(AssertionError, match="row 0 cannot be taken"):
        cache.take(row, 2)
    with pytest.raises(AssertionError, match="row 0 is taken, not kept"):
        cache.evict(row)
    with pytest.raises(AssertionError, match="row 0 is taken, not free"):
        cache.move(1, row)
    cache.release(row)
    with pytest.raises(AssertionError, match="freed twice"):
        cache.release(row)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("_states", [RowState.KEPT, RowState.FREE], "row 0 is kept with 0 of 0"),
        ("_lengths", [0, 3], "row 1 is free with 3"),
        ("_longest", [-1, 0], "row 0 touched -1 and holds 0"),
        ("_num_promised_tokens", 17, "tokens promised"),
        ("_num_promises", 3, "3 promises for 0 taken rows"),
    ],
)
def test_check_catches_a_broken_cache(field, value, fault):
    cache = KVCache(num_rows=2, row_tokens=8, num_tokens=16)
    setattr(cache, field, value)
    with pytest.raises(AssertionError, match=fault):
        cache.check()


class CacheLife(RuleBasedStateMachine):
    """The cache against a table of what each row should be."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(num_rows=3, row_tokens=10, num_tokens=20)
        self.promises: list[int] = []
        self.taken: dict[int, list[int]] = {}  # row: [length, reserved]
        self.kept: dict[int, int] = {}

    @rule(num_tokens=st.integers(1, 10))
    def reserve(self, num_tokens: int) -> None:
        held = [*self.promises, *(reserved for _, reserved in self.taken.values())]
        fits = len(held) < 3 and sum(held) + num_tokens <= 20
        assert self.cache.has_room_for(num_tokens) == fits
        assert self.cache.reserve(num_tokens) == fits
        if fits:
            self.promises.append(num_tokens)

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        reserved = self.promises.pop()
        row = data.draw(st.sampled_from(sorted({0, 1, 2} - self.taken.keys())))
        length = data.draw(st.integers(0, min(reserved, self.kept.pop(row, 0))))
        self.cache.take(row, reserved, length=length)
        self.taken[row] = [length, reserved]
        while self.cache.num_excess_tokens:
            self.evict_one()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.taken)))
        length, reserved = self.taken[row]
        num_tokens = data.draw(st.integers(0, reserved - length))
        self.cache.advance(row, num_tokens)
        self.taken[row][0] += num_tokens

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        row = data.draw(st.sampled_from(sorted(self.taken)))
        length, _ = self.taken.pop(row)
        self.cache.release(row, keep=keep)
        if keep and length:
            self.kept[row] = length

    @precondition(lambda self: self.promises)
    @rule()
    def cancel(self) -> None:
        self.cache.cancel(self.promises.pop())

    @precondition(lambda self: self.kept)
    @rule()
    def evict_one(self) -> None:
        row, _ = self.kept.popitem()
        self.cache.evict(row)

    @precondition(lambda self: self.kept and len(self.kept) + len(self.taken) < 3)
    @rule()
    def move(self) -> None:
        row, length = self.kept.popitem()
        target = min({0, 1, 2} - self.taken.keys() - self.kept.keys() - {row})
        self.cache.move(row, target)
        self.kept[target] = length

    @rule()
    def give_back(self) -> None:
        for row, num_tokens in self.cache.idle_tails():
            assert self.cache.note_given_back(row, num_tokens) > 0
        assert self.cache.idle_tails() == []
        assert self.cache.num_touched_tokens <= 20

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        lengths = [self.taken.get(row, [self.kept.get(row, 0)])[0] for row in range(3)]
        assert self.cache.span_lengths(0, 3) == lengths
        assert self.cache.rows(RowState.TAKEN) == sorted(self.taken)
        assert self.cache.rows(RowState.KEPT) == sorted(self.kept)
        assert self.cache.num_kept_tokens == sum(self.kept.values())


TestCacheLife = CacheLife.TestCase
TestCacheLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
