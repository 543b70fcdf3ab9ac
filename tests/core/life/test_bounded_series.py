from __future__ import annotations

import operator

from hypothesis import given
from hypothesis import strategies as st

from twostroke.life.bounded_series import MAX_ENTRIES, BoundedSeries


@given(st.lists(st.integers(0, 1000), max_size=500))
def test_sums_stay_and_entries_stand_for_equally_many(numbers):
    series: BoundedSeries[list[int]] = BoundedSeries(operator.add)
    for number in numbers:
        series.add([number])
    assert len(series) == len(numbers)
    assert [n for entry in series.entries for n in entry] == numbers, "in order, none lost"
    assert len(series.entries) <= MAX_ENTRIES
    sizes = [len(entry) for entry in series.entries]
    assert len(set(sizes[:-1])) <= 1
    assert not sizes or sizes[-1] <= sizes[0]
    if len(numbers) <= MAX_ENTRIES:
        assert series.entries == tuple([number] for number in numbers)
