from __future__ import annotations

import numpy as np
import pytest

from twostroke.engine.penalties import Penalties
from twostroke.engine.sampler import SamplerState, sample
from twostroke.types import SamplingParams


def penalties(prompt_ids=(), answer=(), **params) -> Penalties:
    kept = Penalties.of(SamplingParams(**params), prompt_ids)
    assert kept is not None
    for token_id in answer:
        kept.add(token_id)
    return kept


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_nothing_asked_for_costs_nothing():
    assert Penalties.of(SamplingParams(), (1, 2)) is None


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_answer():
    kept = penalties((0, 1, 0), (2,), repetition_penalty=2.0)
    assert kept.apply(row(4, -4, 6, 8)).tolist() == [2, -8, 3, 8]


def test_presence_counts_once_and_frequency_each_time_in_the_answer_only():
    kept = penalties((3,), (0, 1, 0, 0), presence_penalty=0.5, frequency_penalty=0.25)
    assert kept.apply(row(2, 2, 2, 2)).tolist() == [2 - 0.5 - 0.75, 2 - 0.5 - 0.25, 2, 2]


def test_presence_applies_to_answer_tokens_that_the_prompt_held_before():
    kept = penalties((1, 2), (1,), repetition_penalty=2.0, presence_penalty=1.0)
    assert kept.apply(row(4, 4, 4)).tolist() == [4, 4 / 2 - 1, 2]


def test_bias_is_added_after_the_penalties():
    kept = penalties((), (1,), frequency_penalty=1.0, logit_bias={1: 5.0, 2: -100.0})
    assert kept.apply(row(1, 1, 1)).tolist() == [1, 1 - 1 + 5, -99]


def test_the_logits_given_are_not_changed():
    logits = row(1, 2, 3)
    penalties((0,), repetition_penalty=2.0).apply(logits)
    assert logits.tolist() == [1, 2, 3]


def test_many_distinct_tokens_are_remembered():
    answer = list(range(0, 1000, 3)) * 2
    kept = penalties((), answer, frequency_penalty=1.0)
    penalised = kept.apply(np.zeros(1000, np.float32))
    expected = -np.bincount(answer, minlength=1000).astype(np.float32)
    assert np.array_equal(penalised, expected)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"repetition_penalty": 3.0}, 1),
        ({"logit_bias": {2: 100.0}}, 2),
        ({"logit_bias": {0: -100.0}}, 1),
    ],
)
def test_greedy_obeys_them(params, expected):
    state = SamplerState(SamplingParams(temperature=0.0, **params), (0,))
    assert sample(row(3, 2, 1)[None], [state]) == [expected]


def test_what_ends_an_answer_is_held_back_until_it_is_long_enough():
    penalties = Penalties(SamplingParams(min_tokens=2), [], stop_ids={1})
    logits = np.array([0.0, 9.0, 1.0], dtype=np.float32)
    for expected in (2, 2, 1):
        assert penalties.apply(logits).argmax() == expected
        penalties.add(expected)
    assert np.isfinite(penalties.apply(logits)).all()
