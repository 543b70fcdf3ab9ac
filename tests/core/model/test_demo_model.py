"""The facade on the demo model: real tokens, real text, both ways of asking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from twostroke.model import Model
from twostroke.types import FinishReason

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
