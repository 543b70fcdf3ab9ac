"""Constrained answers through the step loop, beside free ones."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.engine import EngineLimits
from twostroke.errors import EngineError, RequestError
from twostroke.grammar import Matcher
from twostroke.testing.bundles import byte_tokenizer
from twostroke.testing.engines import EchoEngine, echo_request
from twostroke.types import (
    Constraint,
    ConstraintKind,
    FailedEvent,
    Request,
    SamplingParams,
    TokenEvent,
)

GREEDY = SamplingParams(temperature=0.0)


def constrained(request_id, kind, text, sampling=GREEDY, prompt="hello"):
    plain = echo_request(request_id, prompt, sampling)
    return Request(request_id, plain.prompt_ids, sampling, Constraint(ConstraintKind(kind), text))


def text_of(recorder):
    return byte_tokenizer().decode(recorder.token_ids)


@pytest.fixture
def serve(make_engine, recorder):
    """Serves requests together, to their ends."""

    def serve(*requests, **options):
        engine = make_engine(started=False, **options).engine
        recorders = [recorder() for _ in requests]
        for request, sink in zip(requests, recorders, strict=True):
            engine.submit(request, sink, arrived_at=0.0)
        while not all(each.ends for each in recorders):
            assert engine.run_step()
        engine.check()
        return recorders

    return serve


def test_constrained_and_free_answers_share_a_batch(serve):
    emoji, free, choice = serve(
        constrained("a", "json_schema", '{"const": "😀👍🏽🇫🇷"}'),
        echo_request("b", "hello"),
        constrained("c", "choice", '["maybe", "nope"]'),
    )
    assert text_of(emoji) == '"😀👍🏽🇫🇷"'
    assert text_of(free) == "→hello"
    assert text_of(choice) in ("maybe", "nope")
    assert [each.reason for each in (emoji, free, choice)] == ["stop"] * 3


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=2.0, seed=7, top_k=3),
        SamplingParams(temperature=1.0, seed=7, top_p=0.5, min_p=0.1),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0),
        SamplingParams(temperature=1.0, seed=1, logit_bias={90: 100.0, 2: 100.0}),
        SamplingParams(temperature=0.0, ignore_eos=True),
    ],
)
def test_the_grammar_holds_under_every_way_of_sampling(serve, sampling):
    (answer,) = serve(constrained("a", "regex", "[0-9]{3}-[a-f]{4}", sampling))
    digits, letters = text_of(answer).split("-")
    assert len(digits) == 3
    assert digits.isdecimal()
    assert len(letters) == 4
    assert set(letters) <= set("abcdef")
    assert answer.reason == "stop"


def test_an_answer_that_does_not_fit_ends_with_length(serve):
    sampling = SamplingParams(temperature=0.0, max_tokens=4)
    (answer,) = serve(constrained("a", "json_schema", '{"const": "abcdef"}', sampling))
    assert text_of(answer) == '"abc'
    assert answer.reason == "length"


def test_an_answer_that_just_fits_ends_with_stop(serve):
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    (answer,) = serve(constrained("a", "json_schema", '{"const": "abcdef"}', sampling))
    assert text_of(answer) == '"abcdef"'
    assert answer.reason == "stop"


@pytest.mark.parametrize("step", ["allowed", "accept"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_grammar_that_fails_ends_only_its_own_answer(serve, monkeypatch, step, at):
    own = getattr(Matcher, step)
    calls = []

    def failing(self, argument):
        calls.append(argument)
        if len(calls) == at:
            raise EngineError("too complex")
        return own(self, argument)

    monkeypatch.setattr(Matcher, step, failing)
    broken, free = serve(
        constrained("a", "json_schema", '{"const": "abcdef"}'), echo_request("b", "hello")
    )
    (end,) = broken.ends
    assert isinstance(end, FailedEvent)
    assert "too complex" in str(end.error)
    assert len(broken.token_ids) == at - 1
    assert text_of(free) == "→hello"


def test_a_bad_constraint_is_refused_when_it_is_submitted(make_engine, recorder):
    engine = make_engine(started=False).engine
    sink = recorder()
    with pytest.raises(RequestError, match="unclosed group"):
        engine.submit(constrained("a", "regex", "(((("), sink, arrived_at=0.0)
    assert sink.events == []
    assert engine.stats().num_waiting == 0


def test_an_answer_like_the_prompt_goes_on_as_the_model_would(serve):
    """Where the grammar allows what the model prefers, nothing changes."""
    free, same = serve(echo_request("a", "abc"), constrained("b", "regex", "→[a-z]*", prompt="abc"))
    assert text_of(same) == text_of(free) == "→abc"


# Schemas whose answers are short enough for the echo bundle's context.
_LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
    st.builds(lambda n: {"type": "integer", "minimum": 0, "maximum": n}, st.integers(0, 2000)),
    st.builds(lambda text: {"const": text}, st.text(max_size=4)),
    st.builds(lambda items: {"enum": items}, st.lists(st.integers(-9, 9), min_size=1, max_size=3)),
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda item, n: {"type": "array", "items": item, "maxItems": n},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "é", "x y"]), inner, max_size=2),
        ),
        st.builds(lambda schemas: {"anyOf": schemas}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=4,
)


@given(_SCHEMAS, st.integers(0, 2**32))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_answer_to_a_schema_parses_and_validates(shared_engine, schema, seed):
    sampling = SamplingParams(temperature=1.5, seed=seed)
    request = constrained("a", "json_schema", json.dumps(schema), sampling, prompt="q")
    events = []
    shared_engine.submit(request, events.append, arrived_at=0.0)
    while not events or isinstance(events[-1], TokenEvent):
        shared_engine.run_step()
    assert events[-1].reason == "stop", events[-1]
    ids = [event.token_id for event in events[:-1]]
    jsonschema.validate(json.loads(byte_tokenizer().decode(ids)), schema)


@pytest.fixture(scope="module")
def shared_engine(both_dialects):
    with EchoEngine(both_dialects, EngineLimits(kv_budget_bytes=2**20)) as echo:
        yield echo.engine
