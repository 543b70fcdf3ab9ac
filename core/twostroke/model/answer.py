"""Answers for people who write Python: tokens to iterate over, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from twostroke.model.asking import Ready
from twostroke.model.events import AnswerEvent, SyncTextEvents, TextEvent, TextEvents
from twostroke.model.read_answer import ReadAnswer, ToolCall
from twostroke.text.parsers import Content, Delta
from twostroke.text.parsers.spec import new_call_id
from twostroke.types import (
    FailedEvent,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    Timings,
    TokenId,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer; `str(token)` is its text.

    `text` is what the token makes certain, and may be "": a part of a character, or the possible
    beginning of a stop string. Text held back to the end comes as one more Token with the id and
    index of the last.
    """

    text: str
    token_id: TokenId
    index: int
    logprob: TokenLogprob | None = None  # where `logprobs` was given

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer; `str(completion)` is its text.

    Of an answer in a chat, `reasoning` is what the model thought before it, and `tool_calls` are
    the functions it calls; neither is part of `text`. (The tokens one by one have all of it.)

    `token_ids` are those that were made, without the end-of-sequence token, which
    `num_completion_tokens` counts.
    """

    text: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_completion_tokens: int
    timings: Timings
    token_ids: tuple[TokenId, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        return self.text


class Gathered:
    """What an answer has brought so far."""

    def __init__(self, ready: Ready | None = None) -> None:
        self._prepared(ready)
        self._token_ids: list[TokenId] = []
        self._completion: Completion | None = None

    def _prepared(self, ready: Ready | None) -> None:
        self._parser = None if ready is None else ready.parser
        self._read = ReadAnswer(new_call_id if ready is None else ready.new_call_id)

    @property
    def text(self) -> str:
        """The answer's own text so far."""
        return self._read.text

    @property
    def completion(self) -> Completion | None:
        """The whole answer with its counts and timings; None until the last token was taken."""
        return self._completion

    def gather(self, event: AnswerEvent) -> Token | None:
        """Notes an event; None is the end.

        Raises:
            TwostrokeError: the sequence failed.
        """
        if isinstance(event, TextEvent):
            self._read.add(self._parsed(event.text))
            if event.index == len(self._token_ids):
                self._token_ids.append(event.token_id)
            return Token(event.text, event.token_id, event.index, event.logprob)
        if isinstance(event, FailedEvent):
            raise event.error
        assert not isinstance(event, ProgressEvent), "no request from Python asks for them"
        if self._parser is not None:
            self._read.add(self._parser.finish())
        self._completion = self._complete(event)
        return None

    def _parsed(self, text: str) -> Sequence[Delta]:
        return [Content(text)] if self._parser is None else self._parser.push(text)

    def _complete(self, event: FinishedEvent) -> Completion:
        return Completion(
            text=self.text,
            finish_reason=event.reason,
            num_prompt_tokens=event.num_prompt_tokens,
            num_completion_tokens=event.num_completion_tokens,
            timings=event.timings,
            token_ids=tuple(self._token_ids),
            reasoning=self._read.reasoning,
            tool_calls=tuple(self._read.tool_calls),
        )


class Answer(Gathered):
    """An answer that is being made: iterate over its tokens, or take it whole.

    Leaving the loop early and closing (or dropping) the answer ends the sequence.
    """

    def __init__(self, events: SyncTextEvents, ready: Ready | None = None) -> None:
        super().__init__(ready)
        self._events = events

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        _, event = next(self._events)
        token = self.gather(event)
        if token is None:
            raise StopIteration
        return token

    def complete(self) -> Completion:
        """Takes what is left and returns the whole.

        Raises:
            TwostrokeError: the sequence failed.
        """
        for _ in self:
            pass
        return whole(self)

    def close(self) -> None:
        """Ends the sequence if it has not ended."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncAnswer(Gathered):
    """As `Answer`, for asyncio. The prompt is tokenised, in a thread, when the first token is asked
    for; only then a prompt that is wrong raises.
    """

    def __init__(self, start: Callable[[], tuple[Callable[[], TextEvents], Ready]]) -> None:
        """`start` tokenises, in a thread; it returns what submits, and what it has prepared."""
        super().__init__()
        self._start = start
        self._events: TextEvents | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        if self._is_closed:
            raise StopAsyncIteration
        if self._events is None:
            submit, ready = await asyncio.to_thread(self._start)
            self._prepared(ready)
            self._events = submit()
        _, event = await anext(self._events)
        token = self.gather(event)
        if token is None:
            raise StopAsyncIteration
        return token

    async def complete(self) -> Completion:
        """Takes what is left and returns the whole.

        Raises:
            TwostrokeError: the prompt was refused, or the sequence failed.
        """
        async for _ in self:
            pass
        return whole(self)

    async def aclose(self) -> None:
        """Ends the sequence if it has not ended."""
        self._is_closed = True
        if self._events is not None:
            await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def whole(answer: Gathered) -> Completion:
    """The completion; of an answer that was closed early, what there was."""
    return answer.completion or Completion(
        text=answer.text,
        finish_reason=FinishReason.ABORTED,
        num_prompt_tokens=0,
        num_completion_tokens=0,
        timings=Timings(),
    )
