"""With drafts an engine says what it says without them, in fewer runs."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.engine import EngineLimits
from twostroke.errors import ConfigError, EngineError
from twostroke.testing.engines import EchoEngine, echo_request
from twostroke.types import (
    Constraint,
    ConstraintKind,
    FailedEvent,
    FinishedEvent,
    Request,
    SamplingParams,
    TokenEvent,
)

from .conftest import PLACEMENTS

PROMPT = "the cat sat on the mat and the dog sat on the log; the cat sat on the dog"


def limits(mode: str = "on", **others: object) -> EngineLimits:
    return EngineLimits(
        prefill_chunk_tokens=16,
        kv_budget_bytes=2**20,
        reuse_prefixes="off",
        speculation=mode,
        **others,
    )


def serve(echo, recorder, *requests):
    sinks = [recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        echo.engine.submit(request, sink, arrived_at=0.0)
    while not all(sink.ends for sink in sinks):
        echo.engine.run_step()
        echo.engine.check()
    return sinks


def told(sink):
    """All that a listener hears but times."""
    return [
        (type(e).__name__, e.reason, e.num_completion_tokens, e.end_logprob)
        if isinstance(e, FinishedEvent)
        else e
        for e in sink.events
    ]


SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "seed": SamplingParams(temperature=1.3, seed=5, max_tokens=60),
    "penalties": SamplingParams(
        temperature=0.9, seed=1, max_tokens=60, repetition_penalty=1.2, frequency_penalty=0.3
    ),
    "logprobs": SamplingParams(temperature=0.0, logprobs=2),
    "greedy logprobs to the end": SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True),
    "prompt logprobs": SamplingParams(temperature=0.0, prompt_logprobs=1, logprobs=1),
    "max_tokens": SamplingParams(temperature=0.0, max_tokens=37),
    "stop ids": SamplingParams(temperature=0.0, stop_ids=frozenset({ord("g") + 4})),
}


def requests():
    return [
        Request(name, echo_request(name, PROMPT + name).prompt_ids, sampling)
        for name, sampling in SAMPLINGS.items()
    ]


@pytest.mark.parametrize("placement_name", PLACEMENTS)
def test_the_events_are_those_of_plain_decoding(make_engine, recorder, placement_name):
    placement = PLACEMENTS[placement_name]
    plain = make_engine(started=False, limits=limits("off"), **placement)
    expected = [told(sink) for sink in serve(plain, recorder, *requests())]
    drafting = make_engine(started=False, limits=limits("auto"), **placement)
    speculation = drafting.engine._intake._scheduler.speculation
    if speculation is None:  # where it is impossible, auto serves without
        assert "two backends" in placement_name or "concatenating " in placement_name
    else:
        speculation.mode = "on"  # auto would decide by the clock
    assert [told(sink) for sink in serve(drafting, recorder, *requests())] == expected
    assert [told(serve(drafting, recorder, r)[0]) for r in requests()] == expected


def test_drafts_take_fewer_runs_and_are_counted(make_engine, recorder):
    plain = make_engine(started=False, limits=limits("off"))
    serve(plain, recorder, echo_request("a", PROMPT))
    drafting = make_engine(started=False, limits=limits())
    (sink,) = serve(drafting, recorder, echo_request("a", PROMPT))
    assert drafting.engine.stats().num_steps < plain.engine.stats().num_steps / 3
    stats = drafting.engine.stats()
    assert stats.num_drafted_tokens >= stats.num_accepted_tokens > len(PROMPT) / 2
    decode = sink.events[-1].timings.decode
    assert decode.num_drafted_tokens == stats.num_drafted_tokens
    assert decode.num_accepted_tokens == stats.num_accepted_tokens
    assert plain.engine.stats().num_drafted_tokens == 0


def test_a_grammar_is_followed_through_a_draft(make_engine, recorder):
    choices = json.dumps(["the cat sat on the dog", "the cat sat on the log; the cat"])
    request = Request(
        "a",
        echo_request("a", PROMPT).prompt_ids,
        SamplingParams(temperature=0.0),
        Constraint(ConstraintKind.CHOICE, choices),
    )
    answers = [
        told(serve(make_engine(started=False, limits=limits(mode)), recorder, request)[0])
        for mode in ("off", "on")
    ]
    assert answers[0] == answers[1]


def test_a_failing_verification_ends_its_own_sequence_only(make_engine, recorder):
    echo = make_engine(started=False, limits=limits(), fail_prefill_runs=[12])
    sinks = serve(
        echo, recorder, echo_request("a", "ab"), echo_request("b", PROMPT), echo_request("c", "xy")
    )
    (end,) = sinks[1].ends
    assert isinstance(end, FailedEvent)
    assert isinstance(end.error, EngineError)
    assert [sinks[0].reason, sinks[2].reason] == ["stop", "stop"]
    assert sinks[1].token_ids  # it failed after its prompt
    assert echo.engine.stats().kv_tokens_used == 0


def test_a_listener_that_leaves_within_a_draft_hears_the_end_and_no_more(make_engine):
    echo = make_engine(started=False, limits=limits())
    heard = []

    def listen(event):
        heard.append(event)
        if len(heard) == 7:
            raise RuntimeError("gone")

    echo.engine.submit(echo_request("a", PROMPT), listen, arrived_at=0.0)
    while echo.engine.stats().num_running:
        echo.engine.run_step()
        echo.engine.check()
    assert [isinstance(event, TokenEvent) for event in heard] == [True] * 7 + [False]
    assert heard[-1].reason.value == "aborted"


def test_a_full_context_ends_at_its_last_token(make_engine, recorder):
    ids = echo_request("a", PROMPT).prompt_ids
    request = Request("a", ids, SamplingParams(temperature=0.0, ignore_eos=True))
    few = make_engine(started=False, limits=limits(context_tokens=len(ids) + 50))
    (sink,) = serve(few, recorder, request)
    assert len(sink.token_ids) == 50
    assert sink.reason == "length"


def test_draws_keep_their_distribution(make_engine, recorder):
    """Chi-square over pairs of tokens that drafts propose often, drawn with and without them."""
    ids = tuple([10, 11, 12, 13] * 6)
    counts = {}
    for mode in ("off", "on"):
        echo = make_engine(started=False, limits=limits(mode))
        drawn = [
            Request(
                f"r{seed}",
                ids,
                SamplingParams(
                    temperature=4.0,
                    seed=seed + (5000 if mode == "on" else 0),
                    max_tokens=4,
                    logit_bias=dict.fromkeys((10, 11, 12, 13), 90.0),
                    ignore_eos=True,
                ),
            )
            for seed in range(400)
        ]
        sinks = [serve(echo, recorder, request)[0] for request in drawn]
        counts[mode] = Counter(tuple(sink.token_ids[1:3]) for sink in sinks)
    assert echo.engine.stats().num_accepted_tokens > 20
    kinds = sorted(set(counts["off"]) | set(counts["on"]))
    assert len(kinds) == 16
    off, on = ([counts[mode][kind] for kind in kinds] for mode in ("off", "on"))
    squares = sum((a - b) ** 2 / (a + b) for a, b in zip(off, on, strict=True))
    assert squares < 37.7, counts  # two samples of equal size, 15 degrees of freedom: p = 0.001


def test_what_cannot_be_verified_is_refused_or_off(make_engine):
    with pytest.raises(ConfigError, match="have a KV cache each"):
        make_engine(started=False, limits=limits("on"), decode_options={})
    echo = make_engine(started=False, limits=limits("auto"), decode_options={})
    assert echo.engine._intake._scheduler.speculation is None


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(5, 7), min_size=1, max_size=30), min_size=1, max_size=4),
    max_tokens=st.integers(1, 40),
    seed=st.none() | st.integers(0, 9),
    max_draft_tokens=st.integers(1, 9),
)
def test_any_prompts_at_once(both_dialects, prompts, max_tokens, seed, max_draft_tokens):
    answers = []
    for mode in ("off", "on"):
        with EchoEngine(both_dialects, limits(mode, max_draft_tokens=max_draft_tokens)) as echo:
            events = [[] for _ in prompts]
            for number, (prompt, heard) in enumerate(zip(prompts, events, strict=True)):
                sampling = SamplingParams(
                    temperature=0.0 if seed is None else 0.8, seed=seed, max_tokens=max_tokens
                )
                request = Request(f"r{number}", tuple(prompt), sampling)
                echo.engine.submit(request, heard.append, arrived_at=0.0)
            while echo.engine.stats().num_running or echo.engine.stats().num_waiting:
                echo.engine.run_step()
                echo.engine.check()
            answers.append([[e for e in heard if isinstance(e, TokenEvent)] for heard in events])
    assert answers[0] == answers[1]
