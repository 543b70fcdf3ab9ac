"""`POST /v1/chat/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.model import TextEvent
from twostroke.server.body import read_json
from twostroke.server.choices import choices_of, gather_all, num_choices
from twostroke.server.fields import Int, Messages, check_shape
from twostroke.server.logprobs import chat_logprobs
from twostroke.server.openai_shapes import (
    Ends,
    FrameFields,
    OpenAIFields,
    SseFrames,
    answer_body,
    begin,
)
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.structure import asked_constraint
from twostroke.server.tool_shapes import delta_shape, finish_reason, whole_message
from twostroke.server.turn import Answer, Turn, gather, new_parser
from twostroke.server.unsupported import refuse_unsupported
from twostroke.text.parsers import CallBegin, Delta
from twostroke.text.tools import tool_use
from twostroke.types import FinishedEvent, TokenLogprob


class ChatBody(OpenAIFields):
    """The body of a chat request."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: Any = None  # `tool_use` checks it, and `tool_choice`
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

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


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/chat/completions`, streamed or whole."""
    raw = await read_json(request)
    body = check_shape(ChatBody, raw)
    refuse_unsupported(raw, taken=("n", "logprobs", "top_logprobs", "tools", "tool_choice"))
    n = num_choices(raw)
    tools = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    turn = await begin(
        request,
        body,
        body.messages,
        asked_constraint(raw),
        tools,
        reads_sections=True,
    )
    turns = choices_of(turn, n, lambda: new_parser(turn, tools) if turn.parser else None)
    if body.stream:
        ends = Ends(n)
        frames = [
            ChatFrames(each, wants_usage=body.wants_usage, index=i, ends=ends, head=turn)
            for i, each in enumerate(turns)
        ]
        siblings = list(zip(turns[1:], frames[1:], strict=True))
        return await stream(request, turn, frames[0], siblings=siblings)
    wholes = await gather_all(turns) if n > 1 else [await gather(turn)]
    choices = [_whole_choice(turn, whole, body) for whole in wholes]
    return json_reply(answer_body(turns, "chat.completion", "chatcmpl", choices))


def _whole_choice(turn: Turn, whole: Answer, body: ChatBody) -> dict[str, Any]:
    tokenizer = turn.model.tokenizer
    return {
        "message": whole_message(whole.parts),
        "logprobs": chat_logprobs(tokenizer, whole.logprobs) if body.logprobs else None,
        "finish_reason": finish_reason(whole.finished, called=bool(whole.parts.tool_calls)),
    }


class ChatFrames(SseFrames):
    """Chunks with deltas; the role comes first, the finish reason last."""

    def __init__(self, turn: Turn, **more: Unpack[FrameFields]) -> None:
        super().__init__(turn, "chat.completion.chunk", "chatcmpl", **more)
        self._turn = turn
        self._tokenizer = turn.model.tokenizer
        self._has_called = False
        self._waiting: list[TokenLogprob] = []  # of tokens whose text is not certain yet

    def opening(self) -> bytes:
        """The role."""
        return self.chunk(_choice({"role": "assistant", "content": ""}))

    def token(self, event: TextEvent) -> bytes:
        """The token's text and what it is; no chunk while that is uncertain."""
        if event.logprob is not None:
            self._waiting.append(event.logprob)
        return self._chunks(self._turn.read(event.text)) if event.text else b""

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """What was held back, the finish reason, the usage where asked for, `[DONE]`."""
        yield self._chunks(self._turn.read_rest())
        reason = finish_reason(event, called=self._has_called)
        yield from self.closing_chunks(event, _choice({}, reason, self._logprobs()))

    def _chunks(self, deltas: Iterable[Delta]) -> bytes:
        chunks = []
        for delta in deltas:
            self._has_called |= isinstance(delta, CallBegin)
            shape = delta_shape(delta, self._turn.new_call_id)
            chunks.append(self.chunk(_choice(shape, logprobs=self._logprobs())))
        return b"".join(chunks)

    def _logprobs(self) -> dict[str, Any] | None:
        """Those since the last chunk. Mutates self."""
        found, self._waiting = self._waiting, []
        return chat_logprobs(self._tokenizer, found) if found else None


def _choice(
    delta: dict[str, Any],
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
