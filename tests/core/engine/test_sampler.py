from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.engine.sampler import UNUSABLE, SamplerState, sample
from twostroke.types import SamplingParams

VOCAB = 50


def logits_of(seed: int, rows: int = 1, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def state(prompt_ids=(), **params) -> SamplerState:
    return SamplerState(SamplingParams(**params), prompt_ids)


def draws(logits: np.ndarray, num_draws: int, **params) -> list[int]:
    drawing = state(**params)
    return [sample(logits, [drawing])[0] for _ in range(num_draws)]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def test_greedy_takes_the_highest_of_each_row_and_changes_nothing():
    logits = logits_of(1, rows=4)
    before = logits.copy()
    greedy = [state(temperature=0.0) for _ in range(4)]
    assert sample(logits, greedy) == logits.argmax(axis=1).tolist()
    assert np.array_equal(logits, before)


def test_a_temperature_under_the_threshold_is_greedy():
    logits = logits_of(2)
    assert set(draws(logits, 5, temperature=1e-4)) == {int(logits.argmax())}


def test_rows_without_a_state_are_skipped():
    logits = logits_of(3, rows=3)
    assert sample(logits, [None, state(temperature=0), None]) == [
        UNUSABLE,
        int(logits[1].argmax()),
        UNUSABLE,
    ]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9}])
@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_only_the_row_with_a_bad_number_is_unusable(params, fault):
    logits = logits_of(4, rows=3)
    logits[1, 7] = fault
    tokens = sample(logits, [state(seed=1, **params) for _ in range(3)])
    assert tokens[1] == UNUSABLE
    assert UNUSABLE not in (tokens[0], tokens[2])


def test_a_row_of_minus_infinity_is_unusable_and_single_ones_are_fine():
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[1, 9] = 2.0
    assert sample(logits, [state(seed=1), state(seed=1)]) == [UNUSABLE, 9]
    assert draws(logits[1:], 20, temperature=1.0, top_p=0.5, min_p=0.1) == [9] * 20


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}]
)
def test_draws_follow_the_distribution(params):
    logits = logits_of(5, vocab=12)
    num_draws = 4000
    drawn = np.bincount(draws(logits, num_draws, seed=3, **params), minlength=12) / num_draws
    expected = reference(logits[0], **params)
    assert np.abs(drawn - expected).max() < 0.035  # four standard deviations of 4000 draws
    assert not drawn[expected == 0].any()


def reference(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """The slow, obvious way to the distribution that is drawn from."""
    probabilities = softmax(logits / temperature)
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        probabilities[order[top_k:]] = 0
        probabilities /= probabilities.sum()
    if top_p < 1:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        cut = order[1:][before[1:] >= top_p]
        probabilities[cut] = 0
        probabilities /= probabilities.sum()
    probabilities[probabilities < min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0, 1, 3, 20, 49, 50, 1000]),
    st.sampled_from([0.0, 0.01, 0.3, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_filters_leave_exactly_what_the_obvious_way_leaves(seed, top_k, top_p, min_p, uniform):
    logits = logits_of(seed)
    expected = reference(logits[0], 1.0, top_k, top_p, min_p)
    drawing = state(top_k=top_k, top_p=top_p, min_p=min_p)
    drawing._generator = Repeat(uniform)
    (token,) = sample(logits, [drawing])
    assert expected[token] > 0
    cumulative = np.cumsum(expected)
    is_at_a_border = np.abs(cumulative - uniform).min() < 1e-5  # float32 weights round there
    assert is_at_a_border or token == int(np.searchsorted(cumulative, uniform, side="right"))


class Repeat:
    """A generator that answers one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_batch():
    rows = [logits_of(seed) for seed in range(30)]
    alone = state(seed=11, temperature=0.8, top_p=0.95)
    expected = [sample(row, [alone])[0] for row in rows]
    busy = state(seed=11, temperature=0.8, top_p=0.95)
    others = [state(), state(temperature=0.0), state(seed=11)]
    batched = []
    for row in rows:
        batch = np.concatenate([logits_of(99, rows=2), row, logits_of(98)])
        batched.append(sample(batch, [others[0], others[1], busy, others[2]])[2])
    assert batched == expected
    assert len(set(expected)) > 3


def test_seeds_differ_and_no_seed_is_fresh_each_time():
    logits = logits_of(6)
    logits[:] = 0  # uniform: 40 equal draws by chance are out of the question
    runs = [tuple(draws(logits, 40, seed=seed)) for seed in (1, 2, -1, 2**70, None, None)]
    assert len(set(runs)) == len(runs)
    assert tuple(draws(logits, 40, seed=-1)) == runs[2]


def test_the_extremes_of_the_random_number_stay_inside_the_distribution():
    logits = np.full((1, 4), -np.inf, np.float32)
    logits[0, 1:3] = [1.0, 1.0]
    for value, expected in ((0.0, 1), (1.0, 2)):
        drawing = state()
        drawing._generator = Repeat(value)
        assert sample(logits, [drawing]) == [expected]


def test_top_k_works_on_a_large_vocabulary():
    logits = logits_of(8, vocab=150_000)
    best = set(np.argsort(-logits[0])[:40].tolist())
    assert set(draws(logits, 50, top_k=40, seed=5)) <= best
    assert set(draws(logits, 20, top_k=1, seed=5)) == {int(logits.argmax())}
