from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.life.latency_sketch import LatencySketch


def test_nothing_counted_is_nothing_known():
    assert LatencySketch().quantile_s(0.5) is None
    assert LatencySketch().max_s is None


@given(
    st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), st.sampled_from((0.0, 0.5, 0.9, 1.0))
)
def test_a_quantile_is_within_one_per_cent(durations, share):
    sketch = LatencySketch()
    for duration_s in durations:
        sketch.add(duration_s)
    rank = int(share * (len(durations) - 1))
    assert sketch.quantile_s(share) == pytest.approx(sorted(durations)[rank], rel=0.0101)
    assert sketch.max_s == max(durations)
    assert len(sketch) == len(durations)


def test_equal_ones_are_exact_and_none_take_no_time():
    sketch = LatencySketch()
    for _ in range(3):
        sketch.add(0.3)
    assert sketch.quantile_s(0.5) == statistics.median([0.3] * 3)
    for _ in range(10):
        sketch.add(0.0)  # several tokens of one step
    assert sketch.quantile_s(0.5) == pytest.approx(0.0, abs=1.1e-6)
    assert sketch.max_s == 0.3
