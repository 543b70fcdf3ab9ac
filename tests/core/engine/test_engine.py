"""What a caller sees of one engine."""

from __future__ import annotations

import time

import pytest

from twostroke.engine import EngineLimits
from twostroke.errors import ContextLengthError, RequestError, UnavailableError
from twostroke.testing import make_echo_bundle
from twostroke.testing.engines import echo_request
from twostroke.types import FinishReason, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def test_a_prompt_is_echoed_and_its_end_counted(make_engine):
    answer = make_engine().answer("a", "hello, world", GREEDY)
    assert answer.text == "→hello, world"
    assert answer.end.reason is FinishReason.STOP
    assert answer.end.num_prompt_tokens == 12
    assert answer.end.num_completion_tokens == 14  # separator, twelve bytes, end of sequence
    assert len(answer.token_ids) == 13  # the end itself is counted, not told


@pytest.mark.parametrize("num_prompt_tokens", [1, 15, 16, 17, 31, 32, 33, 64, 100])
def test_any_chunking_of_the_prompt_gives_the_same_answer(make_engine, num_prompt_tokens):
    text = ("the quick brown fox jumps over the lazy dog " * 3)[:num_prompt_tokens]
    assert make_engine().answer("a", text, GREEDY).text == "→" + text


def test_max_tokens_ends_with_length(make_engine):
    answer = make_engine().answer("a", "hello", SamplingParams(temperature=0, max_tokens=3))
    assert (answer.text, answer.end.reason) == ("→he", FinishReason.LENGTH)
    assert answer.end.num_completion_tokens == 3


def test_no_tokens_asked_for_is_answered_at_once(make_engine):
    echo = make_engine()
    answer = echo.answer("a", "hello", SamplingParams(max_tokens=0))
    assert (answer.token_ids, answer.end.reason) == ((), FinishReason.LENGTH)
    assert answer.end.num_completion_tokens == 0
    assert echo.prefill_backend.num_runs["prefill"] == 0
    echo.engine.check()


def test_the_end_of_the_context_ends_with_length(make_engine, tmp_path):
    echo = make_engine(make_echo_bundle(tmp_path / "small", context_tokens=16))
    answer = echo.answer("a", "0123456789", GREEDY)
    assert (answer.text, answer.end.reason) == ("→01234", FinishReason.LENGTH)
    full = echo.answer("b", "0123456789abcde", GREEDY)
    assert (full.text, full.end.reason) == ("→", FinishReason.LENGTH)


def test_every_eos_id_of_the_manifest_ends_the_answer(make_engine, tmp_path):
    letter = echo_request("x", "l").prompt_ids[0]
    echo = make_engine(make_echo_bundle(tmp_path / "two", eos_ids=(2, letter)))
    answer = echo.answer("a", "hello", GREEDY)
    assert (answer.text, answer.end.reason) == ("→he", FinishReason.STOP)


def test_ignore_eos_goes_on_to_the_limit_and_tells_the_token(make_engine):
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    answer = make_engine().answer("a", "hi", sampling)
    assert answer.end.reason is FinishReason.LENGTH
    assert len(answer.token_ids) == answer.end.num_completion_tokens == 6
    assert 2 in answer.token_ids


def test_stop_ids_stop_even_where_eos_is_ignored(make_engine):
    letter = echo_request("x", "l").prompt_ids[0]
    sampling = SamplingParams(temperature=0, stop_ids=frozenset({letter}), ignore_eos=True)
    answer = make_engine().answer("a", "hello", sampling)
    assert (answer.text, answer.end.reason) == ("→he", FinishReason.STOP)
    assert answer.end.num_completion_tokens == 4


def test_a_seed_repeats_an_answer_and_another_one_does_not(make_engine):
    echo = make_engine()
    answers = [
        echo.answer(str(number), "hello", SamplingParams(seed=seed, max_tokens=20)).token_ids
        for number, seed in enumerate((5, 5, 6))
    ]
    assert answers[0] == answers[1] != answers[2]


def test_the_graphs_positions_are_fed_where_they_are_declared(make_engine, tmp_path):
    echo = make_engine(make_echo_bundle(tmp_path / "positions", position_ids=True))
    text = "a prompt of more than one chunk"
    assert echo.answer("a", text, GREEDY).text == "→" + text


def test_timings_are_those_of_the_engines_stages(make_engine):
    end = make_engine().answer("a", "hello", GREEDY).end
    timings = end.timings
    assert None not in (timings.queued_ms, timings.prefill_ms, timings.ttft_ms, timings.decode_ms)
    assert timings.decode_tokens_per_s is not None
    assert timings.ttft_ms >= timings.prefill_ms >= 0


@pytest.mark.parametrize(
    ("ids", "sampling", "fault"),
    [
        ((), GREEDY, "prompt is empty"),
        ((5, -1), GREEDY, "token id -1"),
        ((5, 260), GREEDY, "token id 260; the vocabulary has ids from 0 to 259"),
        ((5,), SamplingParams(logit_bias={260: 1.0}), "logit_bias names the token id 260"),
        ((5,), SamplingParams(logit_bias={5: float("inf")}), "the token id 5 the bias inf"),
    ],
)
def test_what_no_graph_or_sampler_could_use_is_refused(make_engine, ids, sampling, fault):
    echo = make_engine()
    with pytest.raises(RequestError, match=fault):
        echo.engine.submit(Request("a", ids, sampling), print, arrived_at=time.monotonic())
    assert echo.answer("b", "next", GREEDY).text == "→next"


def test_a_prompt_over_the_context_is_refused_with_both_numbers(make_engine):
    echo = make_engine()
    with pytest.raises(ContextLengthError, match="has 512 tokens, the context holds 512"):
        echo.engine.submit(Request("a", (5,) * 512), print, arrived_at=0.0)


def test_a_full_queue_refuses_at_once_and_the_rest_is_served(make_engine, recorder):
    limits = EngineLimits(max_rows=1, max_queue=1, kv_budget_bytes=2**20)
    echo = make_engine(limits=limits, started=False)
    sinks = [recorder(), recorder()]
    for name, sink in zip("ab", sinks, strict=True):
        echo.engine.submit(echo_request(name, name), sink, arrived_at=0.0)
    with pytest.raises(UnavailableError) as caught:
        echo.engine.submit(echo_request("c", "c"), print, arrived_at=0.0)
    assert caught.value.retry_after_s >= 1
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert [sink.reason for sink in sinks] == ["stop", "stop"]


def test_an_id_in_use_is_refused_and_free_again_afterwards(make_engine, recorder):
    echo = make_engine(started=False)
    echo.engine.submit(echo_request("a", "x"), recorder(), arrived_at=0.0)
    with pytest.raises(RequestError, match="'a' is running"):
        echo.engine.submit(echo_request("a", "y"), recorder(), arrived_at=0.0)
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert echo.engine.stats().num_finished == 1


def test_stats_tell_the_load(make_engine, recorder):
    limits = EngineLimits(max_rows=2, prefill_chunk_tokens=4, kv_budget_bytes=2**20)
    echo = make_engine(started=False, limits=limits)
    for name in "abc":
        echo.engine.submit(echo_request(name, "hello"), recorder(), arrived_at=0.0)
    echo.engine.run_step()
    stats = echo.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_rows) == (2, 1, 2)
    assert (stats.kv_tokens_used, stats.num_steps) == (4, 1)
    assert stats.kv_tokens_total == 2 * 520
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    stats = echo.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_finished) == (0, 0, 3)


def test_penalties_count_the_answers_own_tokens(make_engine):
    echo = make_engine()
    assert echo.answer("a", "aaaaaaaa", GREEDY).text == "→aaaaaaaa"
    sampling = SamplingParams(temperature=0, frequency_penalty=2.0, max_tokens=9)
    assert echo.answer("b", "aaaaaaaa", sampling).text.count("a") < 8


class Unread(tuple[int, ...]):
    """Ids that nobody may look at, of which there are many."""

    def __iter__(self):
        raise AssertionError("the ids of a prompt that is too long were read")


def test_of_a_prompt_over_the_context_no_id_is_looked_at(make_engine):
    # Whoever submits is an event loop, where a walk over all ids would be felt.
    with pytest.raises(ContextLengthError, match="has 600 tokens"):
        make_engine().engine.submit(Request("a", Unread((5,) * 600), GREEDY), print, arrived_at=0.0)
