"""One greedy answer of the demo model, whatever happened before: alone, in company, behind what
others left, with drafts, after others were cancelled. In fp32 and in int8."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from twostroke.engine import SyncEvents
from twostroke.model import Model
from twostroke.types import FinishedEvent, Request, SamplingParams, TokenEvent, TokenId

pytestmark = pytest.mark.slow

Ids = tuple[TokenId, ...]
NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
LINE = "The ferry left the island a little after six, when the harbour was still grey. "
SAYINGS = (
    "Explain the tides to a child.",
    "What would a sceptic answer to the claim that honey never spoils?",
    f"Repeat after me, three times: {LINE}",
    "Name three birds.",
    f"Sum this up in one sentence: {LINE * 3}",
    "Write the first line of a poem about glaciers.",
    f"How many words has this? {LINE}",
    "hi",
)
NEXT = "Which of these matters most, and why?"
_numbers = count()


def open_model(bundle: Path, **given: Any) -> Model:
    return Model.open(
        bundle, backend="cpu", context_tokens=1024, max_rows=8, prefill_chunk_tokens=64, **given
    )


def ask_all(model: Model, prompts: Sequence[Ids]) -> list[tuple[Ids, FinishedEvent]]:
    """Greedy answers to prompts that are asked at once."""
    requests = [Request(f"r{next(_numbers)}", prompt, GREEDY) for prompt in prompts]
    said: list[list[TokenId]] = [[] for _ in prompts]
    ends: dict[int, FinishedEvent] = {}
    with SyncEvents(model.engine, requests) as events:
        for index, event in events:
            if isinstance(event, TokenEvent):
                said[index].append(event.token_id)
            else:
                assert isinstance(event, FinishedEvent)
                ends[index] = event
    return [(tuple(ids), ends[index]) for index, ids in enumerate(said)]


def ask(model: Model, prompt: Ids) -> Ids:
    return ask_all(model, [prompt])[0][0]


def chat(model: Model, *turns: str) -> Ids:
    """A prompt of turns, the user's first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]
    return model.encode(messages)


class Alone:
    """What each prompt is answered by an engine that nobody else uses and that keeps nothing."""

    def __init__(self, bundle: Path) -> None:
        plain = {"kv": {"prefixes": {"reuse": "off"}}, "speculation": {"mode": "off"}}
        with open_model(bundle, **plain) as model:
            self.prompts = [chat(model, saying) for saying in SAYINGS]
            self.answers = [ask(model, prompt) for prompt in self.prompts]
            texts = [model.tokenizer.decode(list(ids)) for ids in self.answers]
            turns = list(zip(SAYINGS, texts, strict=True))[:4]
            self.second_prompts = [chat(model, first, said, NEXT) for first, said in turns]
            self.second_answers = [ask(model, prompt) for prompt in self.second_prompts]


@pytest.fixture(scope="module", params=["fp32", "int8"])
def bundle(request: pytest.FixtureRequest, demo_bundles: dict[str, Path]) -> Path:
    return demo_bundles[request.param]


@pytest.fixture(scope="module")
def alone(bundle: Path) -> Alone:
    return Alone(bundle)


@pytest.fixture(scope="module")
def model(bundle: Path, alone: Alone) -> Iterator[Model]:
    with open_model(bundle) as opened:
        yield opened


def test_in_company(model: Model, alone: Alone) -> None:
    assert len(set(alone.answers)) > 5, "else this shows little"
    assert [ids for ids, _ in ask_all(model, alone.prompts)] == alone.answers


def test_behind_what_others_left(model: Model, alone: Alone) -> None:
    """Second turns, and the first ones again."""
    ask_all(model, alone.prompts)
    seconds = ask_all(model, alone.second_prompts)
    assert [ids for ids, _ in seconds] == alone.second_answers
    for prompt, (_, end) in zip(alone.prompts, seconds, strict=False):
        assert end.num_cached_tokens >= len(prompt) - 1, "it was behind what was left"
    assert [ids for ids, _ in ask_all(model, alone.prompts[:3])] == alone.answers[:3]


def test_after_others_were_cancelled(model: Model, alone: Alone) -> None:
    """In the queue, in a chunk of a prompt, in decode; each time in the rows they leave."""
    engine, begun = model.engine, model.engine.stats()
    long = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    for number in range(3):
        prompts = [prompt[: 5 + number] + prompt for prompt in alone.prompts]
        requests = [Request(f"gone{number}.{n}", ids, long) for n, ids in enumerate(prompts * 2)]
        num_steps = engine.stats().num_steps + (0, 1, 13)[number]
        with SyncEvents(engine, requests):
            while engine.stats().num_steps < num_steps:
                time.sleep(0.001)
        assert ask(model, alone.prompts[number]) == alone.answers[number]
    stats = engine.stats()
    assert stats.num_aborted - begun.num_aborted == 3 * 2 * len(SAYINGS)
    phases = (stats.num_aborted_waiting, stats.num_aborted_prefill, stats.num_aborted_decode)
    assert all(phases), phases
    assert [ids for ids, _ in ask_all(model, alone.prompts[:4])] == alone.answers[:4]


def test_with_drafts(bundle: Path, alone: Alone) -> None:
    """Wherever there is a guess in fp32; in int8 drafts would change answers, and auto knows it."""
    is_exact = "fp32" in bundle.name
    with open_model(bundle, speculation={"mode": "on" if is_exact else "auto"}) as model:
        assert [ask(model, prompt) for prompt in alone.prompts[:3]] == alone.answers[:3]
        assert [ids for ids, _ in ask_all(model, alone.prompts)] == alone.answers
        assert [ids for ids, _ in ask_all(model, alone.second_prompts)] == alone.second_answers
        stats = model.engine.stats()
    assert (stats.num_drafted_tokens > stats.num_accepted_tokens > 5) is is_exact
