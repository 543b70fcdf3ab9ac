from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from twostroke.errors import RequestError
from twostroke.model.sampling import build_sampling
from twostroke.types import SamplingParams

DEFAULTS = {"temperature": 0.2, "top_p": 0.9}


def build(**given: Any) -> SamplingParams:
    return build_sampling(given, defaults=DEFAULTS, vocab_size=100, context_tokens=64)


def test_the_request_wins_over_the_model_and_the_model_over_the_rest() -> None:
    params = build(temperature=0.7)
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.9, 0)
    assert build(temperature=None, top_p=None) == build()
    assert build(temperature=0).is_greedy
    assert build(temperature=1e-4).is_greedy


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("max_tokens", 10**12, 64),
        ("max_tokens", 10**4_000, 64),
        ("max_tokens", 5.0, 5),
        ("max_tokens", 0, 0),
        ("max_tokens", np.int64(7), 7),
        ("top_k", -1, 0),
        ("top_k", 1_000_000, 100),
        ("seed", -1, 2**64 - 1),
        ("seed", 2**63, 2**63),
        ("stop", "x", ("x",)),
        ("stop", ["x", "y"], ("x", "y")),
        ("stop", [], ()),
        ("stop_ids", [3, 4], frozenset({3, 4})),
        ("logit_bias", {"5": -100, 6: 1}, {5: -100.0, 6: 1.0}),
        ("ignore_eos", True, True),
        ("temperature", np.float32(0.5), 0.5),
    ],
)
def test_what_is_taken(name: str, given: Any, taken: Any) -> None:
    assert getattr(build(**{name: given}), name) == taken


def test_a_control_token_written_out_as_a_stop_stops_at_the_token() -> None:
    params = build_sampling(
        {"stop": ["<|end|>", "x"], "stop_ids": [3]},
        defaults=DEFAULTS,
        vocab_size=100,
        context_tokens=64,
        control_ids={"<|end|>": 7, "<|other|>": 8},
    )
    assert params.stop_ids == {3, 7}
    assert params.stop == ("<|end|>", "x")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -1),
        ("temperature", 10**400),
        ("temperature", -(10**400)),
        ("temperature", True),
        ("temperature", "0.5"),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", [1]),
        ("top_k", -2),
        ("top_k", 1.5),
        ("max_tokens", -1),
        pytest.param("max_tokens", -(10**5_000), id="max_tokens-long"),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", math.inf),
        ("max_tokens", math.nan),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", "1"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [5]),
        ("stop", 5),
        ("stop", ["x"] * 65),
        ("stop", "x" * 5_000),
        ("stop_ids", [100]),
        ("stop_ids", "12"),
        ("logit_bias", {"191222": -100}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: 101}),
        ("logit_bias", [1]),
        ("logit_bias", {"9" * 5_000: 1}),
        ("ignore_eos", 1),
        ("temprature", 0.5),
    ],
)
def test_what_is_refused_is_named(name: str, given: Any) -> None:
    with pytest.raises(RequestError) as caught:
        build(**{name: given})
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(name)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'"):
        build(temprature=1)


def test_an_id_outside_of_the_vocabulary_gets_the_bounds() -> None:
    with pytest.raises(RequestError, match="ids go from 0 to 99"):
        build(logit_bias={"191222": -100})
