from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.engine.filters import draw, kept_positions, nucleus, top_positions

SIZES = st.sampled_from([1, 2, 255, 256, 257, 1024, 1025, 5000])


def weights_of(seed: int, size: int) -> np.ndarray:
    """Like the softmax of a model: a few heavy tokens, many light ones, some impossible."""
    random = np.random.default_rng(seed)
    weights = np.exp(random.normal(0, 4, size)).astype(np.float32)
    weights[random.random(size) < 0.3] = 0
    weights[random.integers(size)] = weights.max() or 1
    return weights / weights.max()


@settings(deadline=None)
@given(st.integers(0, 10**6), SIZES, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_where_the_cumulative_weight_passes_the_number(seed, size, uniform):
    weights = weights_of(seed, size)
    position = draw(weights, uniform)
    assert weights[position] > 0
    cumulative = np.cumsum(weights.astype(np.float64))
    point = uniform * cumulative[-1]
    before = cumulative[position] - weights[position]
    rounding = cumulative[-1] * 1e-6  # blocks are summed in float32
    assert before - rounding <= point <= cumulative[position] + rounding


@pytest.mark.parametrize("size", [5, 5000])
def test_the_ends_of_the_range_never_hit_an_impossible_token(size):
    weights = np.zeros(size, np.float32)
    weights[[1, size - 2]] = 1
    assert draw(weights, 0.0) == 1
    assert draw(weights, 1.0) == size - 2


@settings(deadline=None)
@given(st.integers(0, 10**6), SIZES, st.integers(1, 60))
def test_the_highest_are_found_by_blocks(seed, size, count):
    logits = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    expected = np.sort(np.argsort(-logits)[:count])
    assert np.array_equal(top_positions(logits, count), expected)


@pytest.mark.parametrize("count", [1, 5, 19, 20, 21])
def test_ties_are_cut_to_the_count(count):
    assert top_positions(np.zeros(5000, np.float32), count).shape == (count,)


@settings(deadline=None)
@given(st.integers(0, 10**6), SIZES, st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99]))
def test_the_nucleus_is_the_smallest_that_reaches_its_share(seed, size, top_p):
    weights = weights_of(seed, size)
    kept = nucleus(weights, top_p)
    share = weights[kept].sum(dtype=np.float64) / weights.sum(dtype=np.float64)
    assert share >= top_p - 1e-6
    without_the_lightest = share - weights[kept].min() / weights.sum(dtype=np.float64)
    assert len(kept) == 1 or without_the_lightest < top_p + 1e-6
    dropped = np.delete(weights, kept)
    assert not len(dropped) or dropped.max() <= weights[kept].min()
    assert np.all(np.diff(kept) > 0)


def test_nothing_asked_for_keeps_all():
    assert kept_positions(np.ones(4, np.float32), top_p=1.0, min_p=0.0) is None


def test_min_p_is_relative_to_the_most_likely():
    weights = np.array([0.1, 1.0, 0.5, 0.2], np.float32)
    assert kept_positions(weights, 1.0, 0.2).tolist() == [1, 2, 3]
    assert kept_positions(weights, 1.0, 1.0).tolist() == [1]
    assert kept_positions(weights, 0.8, 0.5).tolist() == [1, 2]
