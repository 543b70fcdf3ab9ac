"""Tokens chosen from reduced logits are those that all logits would give."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.backends.ort import allocate_on_device
from twostroke.backends.reduced import BLOCK_IDS, BLOCK_WEIGHTS, NUM_TOP, TOP_IDS, TOP_LOGITS
from twostroke.engine.narrowed import sample_reduced
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.sampler import UNUSABLE, SamplerState, sample
from twostroke.testing.host_as_device import HostAsDevice
from twostroke.types import SamplingParams

VOCAB = 20 * BLOCK_IDS + 37

MIXES = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": NUM_TOP},
    {"temperature": 1.0, "top_k": 3000},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.3, "min_p": 1e-4},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {5: 8.0}},
    {"temperature": 1.0, "presence_penalty": 0.5, "top_k": 30},
]


def logits_of(seed: int, rows: int, spread: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, VOCAB)).astype(np.float32)


def reduce(logits: np.ndarray, scales: list[float]) -> ReducedLogits:
    """As a device does: sums in float32, in another order than the host's; of equal logits any are
    among the highest, here those with the last ids.
    """
    batch, vocab = logits.shape
    order = vocab - 1 - np.argsort(-logits[:, ::-1], axis=1, kind="stable")[:, :NUM_TOP]
    with np.errstate(invalid="ignore"):  # infinite logits
        below = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(below * np.float32(scales)[:, None])
    padded = np.zeros((batch, -(-vocab // BLOCK_IDS) * BLOCK_IDS), np.float32)
    padded[:, :vocab] = weights
    halves = padded.reshape(batch, -1, BLOCK_IDS)
    while halves.shape[2] > 1:  # a tree
        half = halves.shape[2] // 2
        halves = halves[:, :, :half] + halves[:, :, half:]
    blocks = halves[:, :, 0]
    top = np.take_along_axis(logits, order, axis=1)
    shuffled = np.random.default_rng(0).permutation(NUM_TOP)
    buffer = allocate_on_device(HostAsDevice(), (batch, 1, vocab), "float32")
    buffer.write(logits[:, None])
    reduced = {TOP_LOGITS: top[:, shuffled], TOP_IDS: order[:, shuffled], BLOCK_WEIGHTS: blocks}
    return ReducedLogits(
        {name: values[:, None] for name, values in reduced.items()}, buffer, has_row_views=True
    )


def states(mixes, seed: int = 3, allowed=None) -> list[SamplerState]:
    made = [SamplerState(SamplingParams(seed=seed, **mix), (1, 2, 5)) for mix in mixes]
    for state in made:
        state.allowed = allowed
    return made


def both(logits: np.ndarray, mixes, seed: int = 3, allowed=None):
    """Tokens of all logits and of reduced ones, the random number that follows, bytes fetched."""
    found = []
    whole, narrowed = states(mixes, seed, allowed), states(mixes, seed, allowed)
    reduced = reduce(logits, [state.inverse_temperature for state in narrowed])
    for tokens, used in (
        (sample(logits, whole), whole),
        (sample_reduced(reduced, narrowed), narrowed),
    ):
        found.append((tokens, [state.uniform() for state in used]))
    return *found, reduced.num_fetched_bytes


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize("seed", range(8))
def test_each_mix_of_parameters_gives_the_same_token(spread, seed):
    logits = logits_of(seed, len(MIXES), spread)
    expected, found, _ = both(logits, MIXES, seed)
    assert found == expected


@pytest.mark.parametrize("step", [0.25, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_equal_logits_are_cut_as_from_the_whole_row(seed, step):
    logits = np.round(logits_of(seed, len(MIXES), 3.0) / step) * np.float32(step)
    expected, found, _ = both(logits, MIXES, seed)
    assert found == expected


@pytest.mark.parametrize("error", [2e-6, -2e-6])
@pytest.mark.parametrize("mix", [{}, {"top_p": 0.6}], ids=["all", "nucleus"])
def test_sums_that_are_a_little_off_decide_nothing(monkeypatch, error, mix):
    """Random numbers and cuts on the very border between two ids."""
    logits = logits_of(9, 1, 4.0)
    weights = np.exp(logits[0].astype(np.float64) - logits.max())
    shares = np.cumsum(weights) / weights.sum()
    nucleus = np.cumsum(-np.sort(-weights)) / weights.sum()
    for at in range(5, 60, 5):
        params = {"temperature": 1.0, **mix}
        if mix:
            params["top_p"] = float(nucleus[at // 5])
        heaviest = int(np.argsort(-weights)[at // 5])
        uniform = float(shares[heaviest])
        for point in (uniform, uniform - 1e-7, uniform + 1e-7):
            whole, narrowed = states([params]), states([params])
            for state in (*whole, *narrowed):
                monkeypatch.setattr(state, "uniform", lambda point=point: point)
            reduced = reduce(logits, [1.0])
            reduced.block_weights = reduced.block_weights * np.float32(1 + error)
            reduced.block_weights[0, :10] *= np.float32(1 - 2 * error)
            assert sample_reduced(reduced, narrowed) == sample(logits, whole)


def test_a_row_of_equal_logits_gives_the_first():
    logits = np.zeros((1, VOCAB), np.float32)
    assert both(logits, [{"temperature": 0.0}])[1][0] == [0]


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_rows_without_a_distribution_are_unusable(fault):
    logits = logits_of(1, 2, 3.0)
    logits[1] = fault if fault < 0 else logits[1]
    logits[1, 700] = fault
    for mix in ({"temperature": 0.0}, {"temperature": 1.0}):
        expected, found, _ = both(logits, [mix, mix])
        assert found[0] == expected[0]
        assert found[0][1] == UNUSABLE


def test_a_grammar_sees_the_whole_row():
    logits = logits_of(2, 2, 3.0)
    allowed = np.argsort(logits[0])[:5]  # none of the highest
    mixes = [{"temperature": 0.0}, {"temperature": 1.0}]
    expected, found, _ = both(logits, mixes, allowed=np.sort(allowed))
    assert found == expected
    assert set(found[0]) <= set(allowed.tolist())


def test_usual_parameters_fetch_one_block_at_most():
    """What a step brings to the host beside the reduction."""
    usual = [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.7},
    ]
    fetched = 0
    for seed in range(20):
        expected, found, num_bytes = both(logits_of(seed, len(usual), 6.0), usual, seed)
        assert found == expected
        fetched += num_bytes
    assert 0 < fetched <= 20 * BLOCK_IDS * 4 + 2 * VOCAB * 4  # a whole row now and then


def test_what_is_fetched_whole_is_read_once_without_views_of_rows():
    logits = logits_of(5, 3, 2.0)
    reduced = reduce(logits, [1.0] * 3)
    reduced._has_row_views = False
    mixes = [{"temperature": 1.0, "repetition_penalty": 1.2}] * 3
    assert sample_reduced(reduced, states(mixes)) == sample(logits, states(mixes))
    assert reduced.num_fetched_bytes == logits.nbytes


def test_a_fault_in_one_row_is_told_and_ends_no_other(monkeypatch):
    logits = logits_of(6, 2, 2.0)
    reduced = reduce(logits, [1.0, 1.0])
    mixes = [{"temperature": 1.0}, {"temperature": 0.0}]
    drawing = states(mixes)
    monkeypatch.setattr(drawing[0], "uniform", lambda: 1 / 0)
    told = []
    tokens = sample_reduced(reduced, drawing, lambda row, fault: told.append((row, type(fault))))
    assert tokens == [UNUSABLE, int(logits[1].argmax())]
    assert told == [(0, ZeroDivisionError)]
