"""From the engine's tokens to the text of an answer, as events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from twostroke.engine.bridge import AsyncEvents, IndexedEvent, SyncEvents
from twostroke.engine.engine import NOT_PREPARED, Engine
from twostroke.life.timeline import Clock
from twostroke.text import Detokenizer, StopMatcher, Tokenizer
from twostroke.timings import Preparation
from twostroke.types import (
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    Request,
    Timings,
    TokenEvent,
    TokenId,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class TextEvent:
    """One more token and the text that it makes certain.

    `text` may be "": a part of a character, or the possible beginning of a stop string. What is
    still held back at the end comes in one more event with the last token's id and index.
    """

    token_id: TokenId
    index: int
    text: str
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # as in TokenEvent


AnswerEvent = ProgressEvent | TextEvent | FinishedEvent | FailedEvent
IndexedAnswerEvent = tuple[int, AnswerEvent]
"""The index of a request, and one of its answer's events."""


class AnswerText:
    """Makes an answer's events out of the engine's. Pure: knows no threads and no engine.

    The terminal event's timings get what this took and, counted from `arrived_at`, the total.
    `is_stopped` is set by a stop string; the sequence must then be aborted, and what the engine
    still says is taken for the end of the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        arrived_at: float,
        clock: Clock = time.monotonic,
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> None:
        """`shown_ids` are control tokens that are written out as text."""
        self.is_stopped = False
        self._arrived_at = arrived_at
        self._clock = clock
        self._busy_s = 0.0
        self._num_prompt_tokens = len(request.prompt_ids)
        self._detokenizer = Detokenizer(tokenizer, request.prompt_ids, shown_ids)
        self._matcher = StopMatcher(request.sampling.stop)
        self._min_tokens = request.sampling.min_tokens
        self._last: TokenEvent | None = None

    def take(self, event: Event) -> list[AnswerEvent]:
        """The events that one event of the engine leads to. Mutates self."""
        began = self._clock()
        events = self._take(event)
        now = self._clock()
        self._busy_s += now - began
        return [self._timed(e, now) if isinstance(e, FinishedEvent) else e for e in events]

    def _take(self, event: Event) -> list[AnswerEvent]:
        if isinstance(event, ProgressEvent):
            return [event]
        if isinstance(event, TokenEvent):
            return [] if self.is_stopped else [self._token(event)]
        if self.is_stopped:
            return [self._stopped(event)]
        if isinstance(event, FailedEvent):
            return [event]
        text, self.is_stopped = self._matcher.push(self._detokenizer.flush())
        text += self._matcher.flush()
        reason = FinishReason.STOP if self.is_stopped else event.reason
        end = replace(event, reason=reason, stop_string=self._matcher.matched)
        if not text or self._last is None:
            return [end]
        return [TextEvent(self._last.token_id, self._last.index, text), end]

    def _timed(self, end: FinishedEvent, now: float) -> FinishedEvent:
        timings = replace(
            end.timings,
            detokenise_ms=self._busy_s * 1e3,
            total_ms=(now - self._arrived_at) * 1e3,
        )
        return replace(end, timings=timings)

    def _token(self, event: TokenEvent) -> TextEvent:
        self._last = event
        text = self._detokenizer.push(event.token_id)
        if event.index >= self._min_tokens:  # before, nothing is looked at for stop strings
            text, self.is_stopped = self._matcher.push(text)
        return TextEvent(event.token_id, event.index, text, event.logprob, event.prompt_logprobs)

    def _stopped(self, event: FinishedEvent | FailedEvent) -> FinishedEvent:
        # The engine may have gone on for a step: only tokens up to the stop string count. A fault
        # in that step can't spoil an answer that was complete.
        num_tokens = self._last.index + 1 if self._last else 0
        if isinstance(event, FailedEvent):
            event = FinishedEvent(FinishReason.STOP, self._num_prompt_tokens, num_tokens, Timings())
        return replace(
            event,
            reason=FinishReason.STOP,
            num_completion_tokens=num_tokens,
            end_logprob=None,
            stop_string=self._matcher.matched,
        )


class _ReadyEvents:
    """What both kinds of iterator share: the events that wait to be read, and the stops."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        arrived_at: float | None,
        shown_ids: frozenset[TokenId],
    ) -> None:
        self._arrived_at = time.monotonic() if arrived_at is None else arrived_at
        self._texts = [
            AnswerText(tokenizer, request, self._arrived_at, shown_ids=shown_ids)
            for request in requests
        ]
        self._ready: deque[IndexedAnswerEvent] = deque()

    def _take(self, item: IndexedEvent, events: AsyncEvents | SyncEvents) -> None:
        """Turns an engine's event into what is read; a stop string ends its sequence."""
        index, event = item
        text = self._texts[index]
        was_stopped = text.is_stopped
        self._ready.extend((index, each) for each in text.take(event))
        if text.is_stopped and not was_stopped:
            events.abort_one(index)


class TextEvents(_ReadyEvents):
    """The events of answers, each with the index of its request, for asyncio.

    Of each answer: ProgressEvents where they are asked for, TextEvents, then exactly one terminal
    event. Submitted when made, all requests or none. Closing, cancelling or dropping it aborts
    what has not ended.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> None:
        """Submits `requests`; call it in the event loop that will iterate.

        Raises:
            RequestError, ContextLengthError, UnavailableError: the engine refuses them.
        """
        super().__init__(tokenizer, requests, arrived_at, shown_ids)
        self._events = AsyncEvents(engine, requests, arrived_at=self._arrived_at, prepared=prepared)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> IndexedAnswerEvent:
        while not self._ready:
            self._take(await anext(self._events), self._events)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Aborts what has not ended; nothing more is iterated."""
        self._ready.clear()
        self._events.abort()


class SyncTextEvents(_ReadyEvents):
    """The events of answers, for plain code; otherwise as `TextEvents`."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> None:
        """Submits `requests`.

        Raises:
            RequestError, ContextLengthError, UnavailableError: the engine refuses them.
        """
        super().__init__(tokenizer, requests, arrived_at, shown_ids)
        self._events = SyncEvents(engine, requests, arrived_at=self._arrived_at, prepared=prepared)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> IndexedAnswerEvent:
        while not self._ready:
            self._take(next(self._events), self._events)
        return self._ready.popleft()

    def close(self) -> None:
        """Aborts what has not ended; nothing more is iterated."""
        self._ready.clear()
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
