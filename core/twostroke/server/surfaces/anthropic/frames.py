"""Anthropic's events: a message begins, its blocks come one after the other, it ends.

    message_start, ping
    content_block_start, content_block_delta …, content_block_stop      (each block)
    message_delta, message_stop

A block ends where the next one begins, so none is ever empty. Token counts in `message_delta` are
those of the whole message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.model import TextEvent
from twostroke.server.answers import AnswerEvent
from twostroke.server.replies import dump
from twostroke.server.surfaces.anthropic.shapes import (
    error_body,
    message_head,
    message_id,
    stop_facts,
    thinking_block,
    tool_block,
    usage,
)
from twostroke.server.turn import Turn
from twostroke.text.parsers import CallArguments, CallBegin, Content, Delta, Reasoning
from twostroke.types import FinishedEvent


class MessageFrames:
    """The events of one message."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, turn: Turn, *, shows_thinking: bool) -> None:
        self._turn = turn
        self._shows_thinking = shows_thinking
        self._kind: str | None = None  # of the block that is being written
        self._num_blocks = 0
        self._has_called = False

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """The message, still empty."""
        return _event("message_start", message=message_head(self._turn)) + _event("ping")

    def token(self, index: int, event: TextEvent) -> bytes:
        """What the token adds to a block, or the block that it begins."""
        if not event.text:
            return b""
        return b"".join(self._written(self._turn.choices[index].read(event.text)))

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """The end of the last block, why the answer ended, and the counts."""
        yield from self._written(self._turn.choices[index].read_rest())
        yield from self._end_block()
        facts = stop_facts(self._turn, event, called=self._has_called)
        yield _event("message_delta", delta=facts, usage=usage(self._turn))
        yield _event("message_stop")

    def fault(self, error: TwostrokeError) -> bytes:
        """An error event, which the SDKs raise."""
        return b"event: error\ndata: " + dump(error_body(error)) + b"\n\n"

    def _written(self, deltas: Iterable[Delta]) -> Iterator[bytes]:
        for delta in deltas:
            match delta:
                case Content(text):
                    yield from self._begin_block("text", {"type": "text", "text": ""})
                    yield self._delta("text_delta", text=text)
                case Reasoning(text):
                    yield from self._begin_block("thinking", thinking_block("", ""))
                    if self._shows_thinking:
                        yield self._delta("thinking_delta", thinking=text)
                case CallBegin(_, name):
                    self._has_called = True
                    yield from self._end_block()
                    call_id = self._turn.new_call_id()
                    yield from self._begin_block("tool_use", tool_block(call_id, name, ""))
                case CallArguments(_, text):
                    yield self._delta("input_json_delta", partial_json=text)

    def _begin_block(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Begins a block, unless one of that kind is being written. Mutates self."""
        if self._kind == kind:
            return
        yield from self._end_block()
        self._kind = kind
        yield _event("content_block_start", index=self._num_blocks, content_block=block)

    def _end_block(self) -> Iterator[bytes]:
        """Ends the block that is being written, if one is. Mutates self."""
        if self._kind is None:
            return
        if self._kind == "thinking":
            yield self._delta("signature_delta", signature=message_id(self._turn))
        yield _event("content_block_stop", index=self._num_blocks)
        self._kind = None
        self._num_blocks += 1

    def _delta(self, kind: str, **values: str) -> bytes:
        delta = {"type": kind, **values}
        return _event("content_block_delta", index=self._num_blocks, delta=delta)


def _event(kind: str, **values: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + dump({"type": kind, **values}) + b"\n\n"
