"""`POST /v1/chat/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.model import TextEvent
from twostroke.server.answers import Answer, AnswerEvent, gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.choices import num_choices
from twostroke.server.fields import Int, Messages, check_shape
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.openai.logprobs import chat_logprobs
from twostroke.server.surfaces.openai.shapes import OpenAIFields, SseFrames, answer_body
from twostroke.server.surfaces.openai.structure import asked_constraint
from twostroke.server.surfaces.openai.tool_shapes import delta_shape, finish_reason, whole_message
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.server.turn import Turn
from twostroke.text.parsers import CallBegin, Delta
from twostroke.text.template_variables import check_variables
from twostroke.text.tools import tool_use
from twostroke.types import FinishedEvent, TokenLogprob

_TAKEN = ("logprobs", "top_logprobs", "tools", "tool_choice", "chat_template_kwargs")


class ChatBody(OpenAIFields):
    """The body of a chat request."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: Any = None  # `tool_use` checks it, and `tool_choice`
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Any = None  # `check_variables` checks it
    reasoning_effort: str | None = None

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: alternatives are asked for without `logprobs`, or two fields contradict
                each other.
        """
        given = super().sampling()
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError(
                "top_logprobs needs logprobs; set logprobs to true.", param="top_logprobs"
            )
        return given

    def variables(self) -> dict[str, Any]:
        """Values for the chat template; the reasoning effort is one, for templates that ask for it.

        Raises:
            RequestError: they are wrong.
        """
        effort = (
            {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        )
        return check_variables({**effort, **check_variables(self.chat_template_kwargs)})


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/chat/completions`, streamed or whole."""
    raw = await read_json(request)
    body = check_shape(ChatBody, raw)
    refuse_unsupported(raw, taken=("n", *_TAKEN))
    wanted = Wanted(
        body.model,
        [body.messages],
        body.sampling(),
        body.scheduled,
        n=num_choices(body.n),
        constraint=asked_constraint(raw),
        tools=tool_use(body.tools, body.tool_choice, body.parallel_tool_calls),
        reads_sections=True,
        variables=body.variables(),
    )
    turn = await begin(request, wanted)
    if body.stream:
        return await stream(request, turn, ChatFrames(turn, wants_usage=body.wants_usage))
    choices = [_whole_choice(turn, whole, body) for whole in await gather(turn)]
    return json_reply(answer_body(turn, "chat.completion", "chatcmpl", choices))


def _whole_choice(turn: Turn, whole: Answer, body: ChatBody) -> dict[str, Any]:
    tokenizer = turn.model.tokenizer
    return {
        "message": whole_message(whole.parts),
        "logprobs": chat_logprobs(tokenizer, whole.logprobs) if body.logprobs else None,
        "finish_reason": finish_reason(whole.finished, called=bool(whole.parts.tool_calls)),
    }


@dataclass(slots=True)
class _Written:
    """What of a choice has been written. `waiting` are tokens whose text is not certain yet."""

    has_called: bool = False
    waiting: list[TokenLogprob] = field(default_factory=list)


class ChatFrames(SseFrames):
    """Chunks with deltas; the role comes first, the finish reason last."""

    def __init__(self, turn: Turn, *, wants_usage: bool) -> None:
        super().__init__(turn, "chat.completion.chunk", "chatcmpl", wants_usage=wants_usage)
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
        yield from self.closing_chunks(index, event, _choice({}, reason, self._logprobs(index)))

    def _chunks(self, index: int, deltas: Iterable[Delta]) -> bytes:
        chunks = []
        for delta in deltas:
            self._written[index].has_called |= isinstance(delta, CallBegin)
            shape = delta_shape(delta, self._turn.new_call_id)
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
