from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.errors import EngineError
from twostroke.model.events import AnswerText, TextEvent
from twostroke.testing import byte_tokenizer
from twostroke.text import Tokenizer
from twostroke.types import (
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    SamplingParams,
    Timings,
    TokenEvent,
)

TOKENIZER = Tokenizer(byte_tokenizer())
TIMINGS = Timings(ttft_ms=1.0)
CLOCK = 7.0  # stands still: arrived two seconds ago
TOLD = Timings(ttft_ms=1.0, detokenise_ms=0.0, total_ms=2000.0)


def finished(num_tokens: int, reason: FinishReason = FinishReason.LENGTH) -> FinishedEvent:
    return FinishedEvent(reason, 1, num_tokens, TIMINGS)


def told(num_tokens: int) -> FinishedEvent:
    """What becomes of `finished`: it tells its timings too."""
    return FinishedEvent(FinishReason.LENGTH, 1, num_tokens, TOLD)


def answer_to(request: Request) -> AnswerText:
    return AnswerText(TOKENIZER, request, 5.0, lambda: CLOCK)


def run(text: str, *stops: str, end: Any = None) -> list[Any]:
    request = Request("r", (5,), SamplingParams(stop=stops))
    answer, events = answer_to(request), []
    ids = TOKENIZER.encode(text, special=True, add_bos=False)
    for index, token_id in enumerate(ids):
        events += answer.take(TokenEvent(token_id, index))
    return events + answer.take(end or finished(len(ids)))


def text_of(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextEvent))


def test_a_token_is_an_event() -> None:
    events = run("abc")
    assert [event.text for event in events[:3]] == ["a", "b", "c"]
    assert [event.index for event in events[:3]] == [0, 1, 2]
    assert events[3:] == [told(3)]


def test_a_stop_string_cuts_and_ends_the_answer() -> None:
    events = run("say stop now", "stop", end=finished(12, FinishReason.ABORTED))
    assert text_of(events) == "say "
    end = events[-1]
    assert (end.reason, end.num_completion_tokens, end.timings) == (FinishReason.STOP, 8, TOLD)
    assert end.stop_string == "stop"


def test_a_fault_behind_a_stop_string_spoils_nothing() -> None:
    events = run("xstop", "stop", end=FailedEvent(EngineError("late")))
    assert text_of(events) == "x"
    assert events[-1].reason is FinishReason.STOP
    assert events[-1].stop_string == "stop"


def test_a_fault_is_passed_on() -> None:
    failure = FailedEvent(EngineError("broken"))
    assert run("ab", end=failure)[-1] is failure


def test_what_was_held_back_comes_before_the_end() -> None:
    events = run("ab st", "stop")
    assert text_of(events) == "ab st"
    assert events[-2].text == "st"
    assert events[-2].index == 4
    assert events[-1] == told(5)


def test_a_cut_character_comes_before_the_end() -> None:
    request = Request("r", (5,), SamplingParams())
    answer = answer_to(request)
    ids = TOKENIZER.encode("é", special=True, add_bos=False)
    assert text_of(answer.take(TokenEvent(ids[0], 0))) == ""
    assert text_of(answer.take(finished(1))) == "\ufffd"


def test_an_answer_without_tokens_has_only_an_end() -> None:
    assert run("") == [told(0)]


@given(text=st.text("ab😀", max_size=12), stop=st.text("ab😀", min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_always_one_end_and_the_text_before_the_stop(text: str, stop: str) -> None:
    events = run(text, stop)
    assert sum(isinstance(event, FinishedEvent) for event in events) == 1
    assert isinstance(events[-1], FinishedEvent)
    before, found, _ = text.partition(stop)
    assert text_of(events) == before
    assert (events[-1].reason is FinishReason.STOP) == bool(found)


@pytest.mark.parametrize("context", [(5,), (2,)])
def test_the_prompt_itself_never_shows(context: tuple[int, ...]) -> None:
    answer = answer_to(Request("r", context, SamplingParams()))
    assert text_of(answer.take(TokenEvent(70, 0))) == TOKENIZER.decode([70])


def test_what_decoding_took_is_summed_and_the_total_ends_with_the_last_of_it() -> None:
    moments = iter((10.0, 10.5, 12.0, 12.25, 20.0, 21.0))
    answer = AnswerText(TOKENIZER, Request("r", (5,), SamplingParams()), 9.0, lambda: next(moments))
    for index, token_id in enumerate(TOKENIZER.encode("ab", special=True, add_bos=False)):
        answer.take(TokenEvent(token_id, index))
    (end,) = answer.take(finished(2))
    assert isinstance(end, FinishedEvent)
    assert (end.timings.detokenise_ms, end.timings.total_ms) == (1750.0, 12000.0)
    assert end.timings.ttft_ms == 1.0, "the engine's own stay"
