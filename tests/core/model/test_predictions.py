"""How much of a prediction an answer says."""

from __future__ import annotations

import pytest

from twostroke.model.predictions import MAX_TOKENS, Prediction, PredictionTally


def counts(prediction: list[int], answer: list[int]) -> tuple[int, int]:
    tally = PredictionTally(Prediction(prediction))
    for token_id in answer:
        tally.add(token_id)
    return tally.num_accepted, tally.num_rejected


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ([1, 2, 3, 4, 5, 6], 6),
        ([1, 2, 3], 3),
        ([1, 2, 9, 4, 5, 6], 3),  # found again by 4 5
        ([9, 9, 2, 3, 4, 5, 6], 3),
        ([2, 1, 4, 3], 0),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 6),  # nothing is said twice
        ([], 0),
    ],
)
def test_what_is_said_is_followed_and_found_again(answer, accepted):
    assert counts([1, 2, 3, 4, 5, 6], answer) == (accepted, 6 - accepted)


def test_a_long_prediction_is_cut():
    assert counts([0] * (MAX_TOKENS + 5), []) == (0, MAX_TOKENS)
