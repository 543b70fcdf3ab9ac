"""Perplexity and divergence by their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostroke.errors import EngineError
from twostroke.evaluation.figures import measure
from twostroke.evaluation.windows import Window
from twostroke.evaluation.yardstick import Yardstick

WINDOWS = [Window((3, 0, 1, 2), 1), Window((0, 1, 2, 3, 0), 2)]  # 3 + 3 scored tokens


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (6, 4)).astype(np.float32)


def probabilities(values: np.ndarray) -> np.ndarray:
    exp = np.exp(values.astype(np.float64))
    return exp / exp.sum(-1, keepdims=True)


def pieces(values: np.ndarray, sizes=((1, 2), (3,))):
    """A scorer that hands out `values` in pieces, in a buffer that it uses again."""
    buffer = np.empty_like(values)
    windows = iter(sizes)
    position = 0

    def score(window):
        nonlocal position
        for size in next(windows):
            buffer[:size] = values[position : position + size]
            position += size
            yield buffer[:size]

    return score


def test_perplexity_by_its_definition():
    values = logits(1)
    figures = measure(pieces(values), WINDOWS)
    chosen = probabilities(values)[range(6), [0, 1, 2, 2, 3, 0]]
    assert figures.num_tokens == 6
    assert figures.perplexity == pytest.approx(math.exp(-np.log(chosen).mean()), rel=1e-9)
    assert (figures.mean_kl, figures.top1_agreement) == (None, None)


def test_divergence_and_agreement_against_what_was_kept():
    theirs, mine = logits(1), logits(2)
    with Yardstick(4) as yardstick:
        measure(pieces(theirs), WINDOWS, keep=yardstick)
        assert (yardstick.rows(2, 3) == theirs[2:5]).all()
        figures = measure(pieces(mine, ((3,), (2, 1))), WINDOWS, source=yardstick)
        p, q = probabilities(theirs), probabilities(mine)
        assert figures.mean_kl == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-6)
        assert figures.top1_agreement == (theirs.argmax(-1) == mine.argmax(-1)).mean()
        same = measure(pieces(theirs), WINDOWS, source=yardstick)
        assert (same.mean_kl, same.top1_agreement) == (0.0, 1.0)


def test_a_shift_of_all_logits_changes_nothing():
    with Yardstick(4) as yardstick:
        figures = measure(pieces(logits(1)), WINDOWS, keep=yardstick)
        shifted = measure(pieces(logits(1) + 1000), WINDOWS, source=yardstick)
    assert shifted.perplexity == pytest.approx(figures.perplexity, rel=1e-3)
    assert shifted.mean_kl == pytest.approx(0, abs=1e-6)


def test_logits_far_from_the_text_overflow_nothing():
    values = np.tile(np.array([0, 0, 0, 1e5], np.float32), (6, 1))
    assert 1e300 < measure(pieces(values), WINDOWS).perplexity < math.inf


def test_logits_that_are_no_numbers_are_refused():
    values = logits(1)
    values[4, 2] = np.nan
    with pytest.raises(EngineError, match="no finite numbers"):
        measure(pieces(values), WINDOWS)


def test_progress_ends_at_one():
    seen: list[float] = []
    measure(pieces(logits(1)), WINDOWS, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
