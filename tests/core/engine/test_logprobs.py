"""Log-probabilities, alone and through the step loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostroke.engine.logprobs import PromptLogprobs, token_logprob
from twostroke.errors import EngineError
from twostroke.testing.engines import echo_request
from twostroke.types import Constraint, ConstraintKind, Request, SamplingParams, TokenEvent


def reference(logits):
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.parametrize("vocab", [5, 3000])
@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_a_token_and_its_alternatives(vocab, num_top):
    logits = np.random.default_rng(0).normal(0, 5, vocab).astype(np.float32)
    found = token_logprob(logits, 3, num_top)
    expected = reference(logits)
    assert found.token_id == 3
    assert found.logprob == pytest.approx(expected[3], abs=1e-6)
    best = np.argsort(-expected)[:num_top]
    assert [token_id for token_id, _ in found.top] == best.tolist()
    assert [value for _, value in found.top] == pytest.approx(expected[best].tolist(), abs=1e-6)


def test_an_impossible_token_has_minus_infinity():
    logits = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    assert token_logprob(logits, 1, 3).logprob == -math.inf


def test_a_prompt_is_gathered_over_chunks():
    logits = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    whole, pieces = PromptLogprobs((1, 2, 3, 4), 2), PromptLogprobs((1, 2, 3, 4), 2)
    whole.add(0, logits)
    pieces.add(0, logits[:3])
    pieces.add(3, logits[3:])
    assert whole.found == pieces.found
    assert whole.found[0] is None
    assert [each.token_id for each in whole.found[1:]] == [2, 3, 4]
    assert whole.found[2].logprob == pytest.approx(reference(logits[1])[3], abs=1e-6)
    with pytest.raises(ValueError, match="follow each other"):
        whole.add(2, logits)


def test_a_prompt_without_a_distribution_is_a_fault():
    with pytest.raises(EngineError, match="no finite numbers"):
        PromptLogprobs((1, 2, 3), 0).add(0, np.array([[0, 1], [0, np.nan]], dtype=np.float32))


@pytest.fixture
def serve(make_engine, recorder):
    def serve(request, **options):
        engine = make_engine(started=False, **options).engine
        sink = recorder()
        engine.submit(request, sink, arrived_at=0.0)
        while not sink.ends:
            assert engine.run_step()
        engine.check()
        return [event for event in sink.events if isinstance(event, TokenEvent)], sink.ends[0]

    return serve


PLACED = {"fused": {}, "two backends": {"decode_options": {}}}


@pytest.mark.parametrize("placement", PLACED)
def test_prompt_and_answer_through_the_engine(serve, placement):
    """The prompt is longer than a chunk (16 tokens)."""
    text = "a prompt of more than one chunk"
    sampling = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1)
    plain, plain_end = serve(
        echo_request("a", text, SamplingParams(temperature=0.0)), **PLACED[placement]
    )
    request = echo_request("b", text, sampling)
    tokens, end = serve(request, **PLACED[placement])
    assert [each.token_id for each in tokens] == [each.token_id for each in plain]
    assert all(each.logprob is None for each in plain)
    assert (plain_end.prompt_logprobs, plain_end.end_logprob) == ((), None)
    for each in tokens:
        assert each.logprob.token_id == each.token_id
        assert each.logprob.top[0] == (each.token_id, each.logprob.logprob)  # greedy
        assert len(each.logprob.top) == 2
    assert end.end_logprob.token_id == 2
    assert len(end.prompt_logprobs) == len(request.prompt_ids)
    assert end.prompt_logprobs[0] is None
    ids = [each.token_id for each in end.prompt_logprobs[1:]]
    assert ids == list(request.prompt_ids[1:])
    assert all(len(each.top) == 1 for each in end.prompt_logprobs[1:])


def test_a_prompt_is_scored_without_any_answer(serve):
    tokens, end = serve(echo_request("a", "hello", SamplingParams(max_tokens=0, prompt_logprobs=0)))
    assert tokens == []
    assert (end.reason, end.num_completion_tokens) == ("length", 0)
    assert len(end.prompt_logprobs) == 5


def test_they_are_of_the_models_own_distribution(serve):
    plain = echo_request("a", "hello", SamplingParams(temperature=0.0, logprobs=1))
    (first, *_), _ = serve(plain)
    bent = SamplingParams(temperature=0.0, logprobs=1, logit_bias={first.token_id: -100.0})
    held = Request("b", plain.prompt_ids, bent, Constraint(ConstraintKind.REGEX, "zz"))
    (other, *_), _ = serve(held)
    assert other.token_id != first.token_id
    assert other.logprob.top == first.logprob.top
    assert other.logprob.logprob < first.logprob.logprob
