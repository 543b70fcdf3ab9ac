"""The events of one response, from the first to the one that ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.model import TextEvent
from twostroke.server.answers import AnswerEvent
from twostroke.server.replies import dump
from twostroke.server.surfaces.openai.logprobs import chat_logprobs
from twostroke.server.surfaces.openai.obfuscation import obfuscation
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.responses.output import Event, Output
from twostroke.server.surfaces.openai.responses.shapes import failure, response_body
from twostroke.server.turn import Turn
from twostroke.text.parsers import Content, Delta
from twostroke.types import FinishedEvent, FinishReason, TokenLogprob

Keep = Callable[[dict[str, Any]], None]
"""Takes a response that has ended."""


class ResponseEvents:
    """Turns the answer of a turn into typed events. `body` is the response once it has ended."""

    def __init__(self, turn: Turn, asked: ResponsesBody, keep: Keep | None = None) -> None:
        """`keep` stores the response; None: it is not stored."""
        self.body: dict[str, Any] | None = None
        self._turn, self._asked, self._keep = turn, asked, keep
        self._output = Output(turn.new_call_id)
        self._waiting: list[TokenLogprob] = []  # of tokens whose text is not certain yet

    def begin(self) -> Iterator[Event]:
        """What comes before the first token."""
        body = self._body("in_progress")
        yield {"type": "response.created", "response": body}
        yield {"type": "response.in_progress", "response": body}

    def token(self, event: TextEvent) -> Iterator[Event]:
        """What one more token adds. Mutates self and the choice's parser."""
        if event.logprob is not None:
            self._waiting.append(event.logprob)
        if not event.text:
            return iter(())
        return self._read(self._turn.choices[0].read(event.text))

    def end(self, event: FinishedEvent) -> Iterator[Event]:
        """What was held back, and the event that ends all. Mutates self; keeps the response."""
        yield from self._read(self._turn.choices[0].read_rest())
        is_complete = event.reason is not FinishReason.LENGTH
        yield from self._output.finish(is_complete=is_complete)
        status = "completed" if is_complete else "incomplete"
        self.body = self._body(status)
        if self._keep is not None:
            self._keep(self.body)
        yield {"type": f"response.{status}", "response": self.body}

    def fail(self, error: TwostrokeError) -> Event:
        """The end of a response that broke off."""
        body = {**self._body("failed"), "error": failure(error)}
        return {"type": "response.failed", "response": body}

    def _body(self, status: str) -> dict[str, Any]:
        output, is_stored = self._output.items, self._keep is not None
        return response_body(self._turn, self._asked, status, output, is_stored=is_stored)

    def _read(self, deltas: Iterable[Delta]) -> Iterator[Event]:
        deltas = list(deltas)
        if not deltas:
            return iter(())
        found, self._waiting = self._waiting, []
        is_text = isinstance(deltas[-1], Content)  # only its tokens are told of
        told = chat_logprobs(self._turn.model.tokenizer, found)["content"] if is_text else []
        return self._output.read(deltas, told)


class ResponseFrames:
    """Server-sent events, numbered; each says its type in its `event` line too."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, events: ResponseEvents, *, obfuscates: bool) -> None:
        self._events = events
        self._obfuscates = obfuscates
        self._num_sent = 0

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """The response as it begins."""
        return self._written(self._events.begin())

    def token(self, index: int, event: TextEvent) -> bytes:
        """What the token adds; nothing while that is uncertain."""
        return self._written(self._events.token(event))

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """What was held back, and the whole response."""
        for each in self._events.end(event):
            yield self._written([each])

    def fault(self, error: TwostrokeError) -> bytes:
        """`response.failed`."""
        return self._written([self._events.fail(error)])

    def _written(self, events: Iterable[Event]) -> bytes:
        return b"".join(map(self._frame, events))

    def _frame(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._num_sent}
        self._num_sent += 1
        if self._obfuscates and "delta" in event:
            numbered["obfuscation"] = obfuscation(len(event["delta"].encode()))
        return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), dump(numbered))
