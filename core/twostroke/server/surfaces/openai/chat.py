"""`POST /v1/chat/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from twostroke.model import TextEvent
from twostroke.server.answers import Answer, AnswerEvent, gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.choices import num_choices
from twostroke.server.fields import check_shape
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.openai.chat_fields import ChatBody
from twostroke.server.surfaces.openai.functions import (
    current_messages,
    older_delta,
    older_message,
    older_reason,
)
from twostroke.server.surfaces.openai.logprobs import chat_logprobs
from twostroke.server.surfaces.openai.shapes import SseFrames, answer_body
from twostroke.server.surfaces.openai.structure import asked_constraint
from twostroke.server.surfaces.openai.tool_shapes import delta_shape, finish_reason, whole_message
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.server.turn import Turn
from twostroke.text.parsers import CallBegin, Delta
from twostroke.types import FinishedEvent, TokenLogprob

_TAKEN = (
    "n",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "prediction",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/chat/completions`, streamed or whole."""
    raw = await read_json(request)
    body = check_shape(ChatBody, raw)
    refuse_unsupported(raw, taken=_TAKEN)
    wanted = Wanted(
        body.model,
        [current_messages(body.messages)],
        body.sampling(),
        body.scheduled,
        n=num_choices(body.n),
        constraint=asked_constraint(raw),
        tools=body.tool_use(),
        reads_sections=True,
        variables=body.variables(),
        end=body.end(),
        prediction=body.predicted(),
    )
    turn = await begin(request, wanted)
    if body.stream:
        return await stream(request, turn, ChatFrames(turn, body))
    choices = [_whole_choice(turn, whole, body) for whole in await gather(turn)]
    return json_reply(answer_body(turn, body, "chat.completion", "chatcmpl", choices))


def _whole_choice(turn: Turn, whole: Answer, body: ChatBody) -> dict[str, Any]:
    tokenizer, message = turn.model.tokenizer, whole_message(whole.parts)
    reason = finish_reason(whole.finished, called=bool(whole.parts.tool_calls))
    is_older = body.has_older_form
    return {
        "message": older_message(message) if is_older else message,
        "logprobs": chat_logprobs(tokenizer, whole.logprobs) if body.logprobs else None,
        "finish_reason": older_reason(reason) if is_older else reason,
    }


@dataclass(slots=True)
class _Written:
    """What of a choice has been written. `waiting` are tokens whose text is not certain yet."""

    has_called: bool = False
    waiting: list[TokenLogprob] = field(default_factory=list)


class ChatFrames(SseFrames):
    """Chunks with deltas; the role comes first, the finish reason last."""

    def __init__(self, turn: Turn, body: ChatBody) -> None:
        super().__init__(turn, body, "chat.completion.chunk", "chatcmpl")
        self._is_older = body.has_older_form
        self._written = [_Written() for _ in turn.choices]

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """The role."""
        return self.chunk(index, _choice({"role": "assistant", "content": ""}))

    def token(self, index: int, event: TextEvent) -> bytes:
        """The token's text and what it is; no chunk while that is uncertain."""
        if event.logprob is not None:
            self._written[index].waiting.append(event.logprob)
        if not event.text:
            return b""
        return self._chunks(index, self._turn.choices[index].read(event.text))

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """What was held back, the finish reason, the usage where asked for, `[DONE]`."""
        yield self._chunks(index, self._turn.choices[index].read_rest())
        reason = finish_reason(event, called=self._written[index].has_called)
        reason = older_reason(reason) if self._is_older else reason
        yield from self.closing_chunks(index, event, _choice({}, reason, self._logprobs(index)))

    def _chunks(self, index: int, deltas: Iterable[Delta]) -> bytes:
        chunks = []
        for delta in deltas:
            self._written[index].has_called |= isinstance(delta, CallBegin)
            shape = delta_shape(delta, self._turn.new_call_id)
            shape = older_delta(shape) if self._is_older else shape
            chunks.append(self.chunk(index, _choice(shape, logprobs=self._logprobs(index))))
        return b"".join(chunks)

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        """Those since the choice's last chunk. Mutates self."""
        written = self._written[index]
        found, written.waiting = written.waiting, []
        return chat_logprobs(self._turn.model.tokenizer, found) if found else None


def _choice(
    delta: dict[str, Any],
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
