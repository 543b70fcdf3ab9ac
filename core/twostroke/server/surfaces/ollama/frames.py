"""Ollama's streams: a JSON object a line, the last with the counts. Also whole answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.model import TextEvent, ToolCall
from twostroke.server.answers import Answer, AnswerEvent
from twostroke.server.replies import dump
from twostroke.server.surfaces.ollama.shapes import Piece, call_shape, ending, error_body, head
from twostroke.server.surfaces.openai.logprobs import chat_logprobs
from twostroke.server.turn import Turn
from twostroke.text import Tokenizer
from twostroke.text.parsers import CallArguments, CallBegin, Content, Delta, Reasoning
from twostroke.types import FinishedEvent, TokenId, TokenLogprob

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Writing:
    """How an answer is written: its pieces, and what its end tells.

    `load_s` is how long the model was waited for; with `has_context` the ids of everything that
    was read and written are told.
    """

    piece: Piece
    load_s: float
    has_context: bool = False


class AnswerFrames:
    """The lines of one answer. A call is a line when it is complete."""

    content_type = NDJSON

    def __init__(self, turn: Turn, name: str, writing: Writing) -> None:
        """`name` is what the model was asked by."""
        self._turn, self._name, self._writing = turn, name, writing
        self._answer_ids: list[TokenId] | None = [] if writing.has_context else None
        self._waiting: list[TokenLogprob] = []  # of tokens whose text is not certain yet
        self._call: ToolCall | None = None
        self._num_calls = 0

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """Nothing."""
        return b""

    def token(self, index: int, event: TextEvent) -> bytes:
        """The token's text and what it is; no line while that is uncertain."""
        if event.logprob is not None:
            self._waiting.append(event.logprob)
        if self._answer_ids is not None and event.index == len(self._answer_ids):
            self._answer_ids.append(event.token_id)
        if not event.text:
            return b""
        return b"".join(self._lines(self._turn.choices[index].read(event.text)))

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """What was held back, then the line with the counts."""
        yield from self._lines(self._turn.choices[index].read_rest())
        yield from self._end_call()
        facts = {**ending(self._turn, event, self._writing.load_s), **self._logprobs()}
        if self._answer_ids is not None:
            facts["context"] = [*self._turn.choices[index].request.prompt_ids, *self._answer_ids]
        yield self._line("", **facts)

    def fault(self, error: TwostrokeError) -> bytes:
        """An error's line, which clients raise."""
        return dump(error_body(error)) + b"\n"

    def _lines(self, deltas: Iterable[Delta]) -> Iterator[bytes]:
        for delta in deltas:
            if not isinstance(delta, CallArguments):
                yield from self._end_call()
            match delta:
                case Content(text):
                    yield self._line(text, done=False, **self._logprobs())
                case Reasoning(text):
                    yield self._line("", text, done=False, **self._logprobs())
                case CallBegin(_, name):
                    self._call = ToolCall(self._turn.new_call_id(), name)
                case CallArguments(_, text):
                    assert self._call is not None, "arguments come behind the beginning"
                    self._call.arguments += text

    def _end_call(self) -> Iterator[bytes]:
        """The call that is being written, if one is. Mutates self."""
        if self._call is None:
            return
        shape = call_shape(self._num_calls, self._call)
        self._call = None
        self._num_calls += 1
        yield self._line("", "", (shape,), done=False, **self._logprobs())

    def _line(
        self,
        content: str,
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),
        **facts: Any,
    ) -> bytes:
        piece = self._writing.piece(content, thinking, calls)
        return dump({**head(self._name), **piece, **facts}) + b"\n"

    def _logprobs(self) -> dict[str, Any]:
        """Those since the last line. Mutates self."""
        found, self._waiting = self._waiting, []
        return logprobs_of(self._turn.model.tokenizer, found)


def whole_answer(turn: Turn, whole: Answer, name: str, writing: Writing) -> dict[str, Any]:
    """A whole answer; the arguments are as for `AnswerFrames`."""
    parts = whole.parts
    calls = [call_shape(index, call) for index, call in enumerate(parts.tool_calls)]
    context = (*turn.choices[0].request.prompt_ids, *whole.token_ids)
    return {
        **head(name),
        **writing.piece(parts.text, parts.reasoning, calls),
        **ending(turn, whole.finished, writing.load_s),
        **logprobs_of(turn.model.tokenizer, whole.logprobs),
        **({"context": context} if writing.has_context else {}),
    }


def logprobs_of(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs`, where there are any; an entry is as OpenAI's chat has it."""
    return {"logprobs": chat_logprobs(tokenizer, found)["content"]} if found else {}
