from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.kv_extent import Buckets, Extent, Room

BUCKETS = Buckets(Extent(6, 1000), least_row_tokens=64)


@pytest.mark.parametrize(
    ("num_rows", "num_tokens", "extent"),
    [
        (0, 0, Extent(1, 64)),
        (1, 63, Extent(1, 64)),  # and one position for a row that idles
        (2, 64, Extent(2, 128)),
        (3, 511, Extent(4, 512)),
        (5, 512, Extent(6, 1000)),
        (6, 999, Extent(6, 1000)),
    ],
)
def test_sizes_are_powers_of_two_or_all_there_may_be(num_rows, num_tokens, extent):
    assert BUCKETS.holding(num_rows, num_tokens) == extent


def test_a_small_cache_begins_whole():
    assert Buckets(Extent(1, 72)).least == Extent(1, 72)


needs = st.lists(st.integers(0, 999), min_size=6, max_size=6)


@given(needs, needs)
def test_room_grows_to_what_is_needed_and_shrinks_only_by_half(first, second):
    room = Room(BUCKETS)
    for held in (first, second):
        wanted = room.wanted(held)
        assert (not wanted) == (not room.unfit(held))
        if wanted:
            assert wanted[0].covers(room.extent)
            assert all(BUCKETS.full.covers(extent) for extent in wanted)
            room.extent = wanted[0]
            assert not room.unfit(held)
            room.extent = wanted[-1]  # where the device has no more
        assert not room.unfit(held)
    idle = room.idle(second)
    if idle is not None:
        assert 3 * idle.num_tokens <= 2 * room.extent.num_tokens  # 6 rows to 4 is the least step
        room.extent = idle
        assert not room.unfit(second)
        assert room.idle(second) is None


def test_arrays_that_runs_are_recorded_over_only_grow():
    room = Room(Buckets(Extent(6, 1000), least_row_tokens=64, can_shrink=False))
    (extent, *_) = room.wanted([500, 500, 0, 0, 0, 0])
    room.extent = extent
    assert room.idle([0] * 6) is None
    assert not room.wanted([500, 500, 0, 0, 0, 0])
