from __future__ import annotations

import pytest

from twostroke.engine.sequence import sequence_for
from twostroke.errors import ContextLengthError
from twostroke.types import Request, SamplingParams


def request(num_prompt_tokens: int, max_tokens: int | None) -> Request:
    return Request("r", (7,) * num_prompt_tokens, SamplingParams(max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "expected"),
    [(3, None, 10), (3, 4, 7), (3, 7, 10), (3, 10**100, 10), (9, None, 10), (3, 0, 3)],
)
def test_the_answer_ends_with_max_tokens_or_the_context(num_prompt_tokens, max_tokens, expected):
    assert sequence_for(request(num_prompt_tokens, max_tokens), 10).max_total_tokens == expected


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers():
    with pytest.raises(
        ContextLengthError, match=r"prompt is too long: it has 10 tokens, the context holds 10 "
    ) as caught:
        sequence_for(request(10, 1), 10)
    assert str(caught.value).endswith("Shorten the prompt to 9 tokens.")
    assert caught.value.param == "prompt"
    assert caught.value.status == 400


def test_a_larger_context_is_advised_only_where_the_bundle_has_one():
    with pytest.raises(ContextLengthError, match=r"larger context_tokens .*up to 64\)\."):
        sequence_for(request(10, 1), 10, 64)
    with pytest.raises(ContextLengthError, match=r"Shorten the prompt to 9 tokens\.$"):
        sequence_for(request(10, 1), 10, 10)
