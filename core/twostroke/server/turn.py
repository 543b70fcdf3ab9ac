"""One request through one model: the path behind every surface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from twostroke.errors import EngineError, UnavailableError
from twostroke.model import Model, ReadAnswer, TextEvent
from twostroke.model.asking import Asked, check_asked, compile_calls, parser_for
from twostroke.model.preparing import compile_timed
from twostroke.server.text_threads import threads_for
from twostroke.text.parsers import Content, Delta, SectionParser
from twostroke.text.tools import ToolUse
from twostroke.timings import Preparation
from twostroke.types import (
    Constraint,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    TokenId,
    TokenLogprob,
)

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""

# They wait for those that compile, which have limits of their own.
_grammar_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="twostroke-grammar-wait")


def new_id() -> str:
    """A fresh request id; also the stem of the ids in OpenAI's answers."""
    return uuid4().hex


@dataclass(slots=True)
class Turn:
    """A tokenised request on its way through a model. `finished` is set when it ended well.

    `blocked_s` is what a stream has waited for its client; None where nothing was streamed.
    """

    model: Model
    request: Request
    arrived_at: float  # time.monotonic()
    prepared: Preparation
    created_at: int = field(default_factory=lambda: int(time.time()))  # seconds since the epoch
    finished: FinishedEvent | None = None
    blocked_s: float | None = None
    parser: SectionParser | None = None  # None: an answer is nothing but text

    def read(self, text: str) -> Sequence[Delta]:
        """What the next piece of the answer's text is. Mutates the parser."""
        return [Content(text)] if self.parser is None else self.parser.push(text)

    def read_rest(self) -> Sequence[Delta]:
        """What the parser has held back to the end. Mutates it."""
        return () if self.parser is None else self.parser.finish()

    def new_call_id(self) -> str:
        """An id for a call in the answer, as the model's template wants it."""
        reader = self.model.reader
        assert reader is not None, "calls are read by a reader"
        return reader.spec.new_call_id()

    @property
    def shown_ids(self) -> frozenset[TokenId]:
        """Control tokens that the parser must see."""
        reader = self.model.reader
        return frozenset() if self.parser is None or reader is None else reader.shown_ids

    def note_blocked(self, duration_s: float) -> None:
        """Adds a time in which the client did not read; 0 says that it is streamed. Mutates."""
        self.blocked_s = (self.blocked_s or 0.0) + duration_s
        if self.finished is not None:
            self.finish(self.finished)

    def finish(self, event: FinishedEvent) -> FinishedEvent:
        """The end, with the time that the client kept it waiting so far. Sets `finished`."""
        if self.blocked_s is not None:
            timings = replace(event.timings, blocked_ms=self.blocked_s * 1e3)
            event = replace(event, timings=timings)
        self.finished = event
        return event


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `text` is all of it, `parts` what the turn's parser makes of it."""

    text: str
    parts: ReadAnswer
    finished: FinishedEvent
    logprobs: tuple[TokenLogprob, ...] = ()  # where the request asks for them, one a token
    offsets: tuple[int, ...] = ()  # where in the text each of those tokens begins, in characters


async def prepare(
    model: Model,
    prompt: Prompt,
    given: Mapping[str, Any],
    *,
    request_id: str,
    arrived_at: float,
    constraint: Constraint | None = None,
    scope: str = "",
    tools: ToolUse | None = None,
    reads_sections: bool = False,
) -> Turn:
    """Checks the sampling parameters, tokenises the prompt and compiles the constraint, in threads.

    `scope` says whose request it is: what it leaves in the KV cache is for the same one only.
    With `reads_sections` the answer is parsed: for reasoning, and for calls where there are tools.

    Raises:
        RequestError: a parameter, the prompt or the constraint is wrong.
        UnavailableError: too many constraints are being compiled.
    """
    asked = check_asked(Asked(model.sampling(**given), constraint, tools))
    loop = asyncio.get_running_loop()
    prompt_ids, prepared = await loop.run_in_executor(
        threads_for(prompt), model.encode_timed, prompt, tools
    )
    if tools is not None:
        constraint, prepared = await loop.run_in_executor(
            _grammar_threads, compile_calls, model, prompt_ids, tools, prepared
        )
    elif constraint is not None:
        prepared = await loop.run_in_executor(
            _grammar_threads, compile_timed, model.engine.compile, constraint, prepared
        )
    request = Request(request_id, prompt_ids, asked.sampling, constraint, scope=scope)
    turn = Turn(model, request, arrived_at, prepared)
    if reads_sections and asked.constraint is None:
        turn.parser = new_parser(turn, tools)
    return turn


def new_parser(turn: Turn, tools: ToolUse | None) -> SectionParser | None:
    """A parser for an answer to the turn's prompt."""
    return parser_for(turn.model, turn.request.prompt_ids, tools)


async def answer(turn: Turn) -> AsyncGenerator[TextEvent | FinishedEvent, None]:
    """The events of a turn; the last one is a FinishedEvent. Closing it aborts the sequence.

    Raises:
        TwostrokeError: the sequence was refused, failed, or was stopped with the server.
    """
    events = turn.model.events(
        [turn.request],
        arrived_at=turn.arrived_at,
        prepared=turn.prepared,
        shown_ids=turn.shown_ids,
    )
    async with aclosing(events):
        async for _, event in events:
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, TextEvent):
                yield event
            elif event.reason is FinishReason.ABORTED:
                raise UnavailableError("The answer was cut off: the server is stopping.")
            else:
                yield turn.finish(event)


async def gather(turn: Turn) -> Answer:
    """The whole answer of a turn.

    Raises:
        TwostrokeError: as `answer`.
    """
    gathering = Gathering(turn, ReadAnswer(turn.new_call_id))
    async with aclosing(answer(turn)) as events:
        async for event in events:
            if isinstance(event, TextEvent):
                gathering.add(event)
    return gathering.whole()


@dataclass(slots=True)
class Gathering:
    """An answer that is being put together."""

    turn: Turn
    parts: ReadAnswer
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, event: TextEvent) -> None:
        """Takes the next token. Mutates self and the turn's parser."""
        if event.logprob is not None:
            self.logprobs.append(event.logprob)
            self.offsets.append(len(self.text))
        self.text += event.text
        self.parts.add(self.turn.read(event.text))

    def whole(self) -> Answer:
        """The answer; its turn has finished. Mutates self and the turn's parser.

        Raises:
            EngineError: the turn has not finished.
        """
        if self.turn.finished is None:
            raise EngineError("The answer ended before it was complete; try again.")
        self.parts.add(self.turn.read_rest())
        logprobs, offsets = tuple(self.logprobs), tuple(self.offsets)
        return Answer(self.text, self.parts, self.turn.finished, logprobs, offsets)
