"""Constrained answers through `Model`."""

from __future__ import annotations

import pytest

from twostroke.errors import RequestError
from twostroke.model import Model


def test_generate_follows_a_schema(model: Model) -> None:
    answer = model.complete("hi", json_schema={"const": "😀👍🏽"})
    assert answer.text == '"😀👍🏽"'
    assert answer.finish_reason == "stop"


def test_a_stop_string_still_ends_the_answer(model: Model) -> None:
    assert model.complete("hi", choice=["say cheese"], stop="chee").text == "say "


async def test_stream_follows_a_regex(model: Model) -> None:
    answer = await model.stream("hi", regex="[0-9]{4}").complete()
    assert len(answer.text) == 4
    assert answer.text.isdecimal()


async def test_a_bad_constraint_shows_when_the_first_token_is_asked_for(model: Model) -> None:
    stream = model.stream("hi", regex="((((")
    with pytest.raises(RequestError, match="unclosed group"):
        await anext(stream)


def test_two_constraints_contradict_each_other(model: Model) -> None:
    with pytest.raises(RequestError, match="regex and choice are both there"):
        model.generate("hi", regex="a", choice=["b"])
