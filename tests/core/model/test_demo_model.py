"""The facade on the demo model: real tokens, real text, both ways of asking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from twostroke.engine import SyncEvents
from twostroke.model import Model
from twostroke.types import FinishedEvent, FinishReason, Request

pytestmark = pytest.mark.slow

GREEDY = {"temperature": 0, "max_tokens": 40}
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def demo_model(demo_bundle_fp32: Path) -> Iterator[Model]:
    with Model.open(demo_bundle_fp32, context_tokens=1024, max_rows=4) as model:
        yield model


def test_a_chat_is_answered(demo_model: Model) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = demo_model.complete(question, **GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason is FinishReason.STOP
    assert "<|im_end|>" not in answer.text


def test_one_bos_and_parts_that_count_as_one(demo_model: Model) -> None:
    assert len(demo_model.encode([{"role": "user", "content": "hi"}])) == 31
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2+2?"}]
    joined = [{"role": "user", "content": "What is 2+2?"}]
    assert demo_model.encode([{"role": "user", "content": parts}]) == demo_model.encode(joined)


@pytest.mark.parametrize("at", [5, 12, 30])
def test_a_stop_string_that_spans_two_tokens_cuts_exactly(demo_model: Model, at: int) -> None:
    tokens = list(demo_model.generate(STORY, **GREEDY))
    text = "".join(map(str, tokens))
    stop = str(tokens[at])[-2:] + str(tokens[at + 1])[:3]
    expected = text[: text.index(stop)]

    whole = demo_model.complete(STORY, stop=stop, **GREEDY)
    assert (whole.text, whole.finish_reason) == (expected, FinishReason.STOP)

    async def stream() -> str:
        return "".join(
            [str(token) async for token in demo_model.stream(STORY, stop=stop, **GREEDY)]
        )

    assert asyncio.run(stream()) == expected


def test_the_text_is_what_the_tokenizer_makes_of_the_ids(demo_model: Model) -> None:
    answer = demo_model.complete(STORY, temperature=1.5, seed=3, max_tokens=80)
    assert answer.text == demo_model.tokenizer.decode(answer.token_ids)


def test_a_seed_gives_the_same_text_in_company(demo_model: Model) -> None:
    chosen = {"temperature": 1.0, "seed": 11, "max_tokens": 16}
    alone = demo_model.complete(STORY, **chosen).text
    company = [demo_model.generate(f"{n} {STORY}", seed=n, max_tokens=16) for n in range(3)]
    assert demo_model.complete(STORY, **chosen).text == alone
    others = {answer.complete().text for answer in company}
    assert alone not in others
    assert len(others) == 3


def test_an_emoji_constant_streams_exactly(demo_model: Model) -> None:
    emoji = "😀👍🏽🇫🇷"  # each of several tokens
    tokens = list(demo_model.generate("hi", json_schema={"const": emoji}, **GREEDY))
    assert len(tokens) > 8
    assert not any("\ufffd" in token.text for token in tokens)
    assert "".join(map(str, tokens)) == f'"{emoji}"'


def test_an_answer_follows_its_schema(demo_model: Model) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "n": {"enum": [1, 2]}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    for sampling in (GREEDY, {"temperature": 1.5, "seed": 5}):
        answer = demo_model.complete(
            "The capital of France as JSON:", json_schema=schema, **sampling
        )
        jsonschema.validate(json.loads(answer.text), schema)
        assert answer.finish_reason is FinishReason.STOP


def test_a_prompt_is_scored_as_its_beginnings_are_continued(demo_model: Model) -> None:
    ids = demo_model.encode("The capital of France is Paris.")
    scored = demo_model.sampling(max_tokens=0, prompt_logprobs=1)
    *_, (_, end) = SyncEvents(demo_model.engine, [Request("scored", ids, scored)])
    assert isinstance(end, FinishedEvent)
    assert end.prompt_logprobs[0] is None
    for length in (3, 5):
        (token,) = demo_model.generate(ids[:length], temperature=0, max_tokens=1, logprobs=1)
        found = end.prompt_logprobs[length]
        assert token.logprob is not None
        assert found is not None
        assert found.token_id == ids[length]
        assert found.top[0][0] == token.token_id
        assert found.top[0][1] == pytest.approx(token.logprob.logprob, abs=1e-3)
