"""`POST /v1/chat/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.model import TextEvent
from twostroke.server.body import read_json
from twostroke.server.fields import Int, Messages, check_shape
from twostroke.server.logprobs import chat_logprobs
from twostroke.server.openai_shapes import OpenAIFields, SseFrames, answer_body, begin
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.structure import asked_constraint
from twostroke.server.turn import Turn, gather
from twostroke.server.unsupported import refuse_unsupported
from twostroke.types import FinishedEvent, TokenLogprob


class ChatBody(OpenAIFields):
    """The body of a chat request."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Int | None = None

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
    refuse_unsupported(raw, taken=("logprobs", "top_logprobs"))
    turn = await begin(request, body, body.messages, asked_constraint(raw))
    if body.stream:
        return await stream(request, turn, ChatFrames(turn, wants_usage=body.wants_usage))
    whole = await gather(turn)
    tokenizer = turn.model.tokenizer
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": whole.text, "refusal": None},
        "logprobs": chat_logprobs(tokenizer, whole.logprobs) if body.logprobs else None,
        "finish_reason": whole.finished.reason,
    }
    return json_reply(answer_body(turn, "chat.completion", "chatcmpl", choice))


class ChatFrames(SseFrames):
    """Chunks with deltas; the role comes first, the finish reason last."""

    def __init__(self, turn: Turn, *, wants_usage: bool) -> None:
        super().__init__(turn, "chat.completion.chunk", "chatcmpl", wants_usage=wants_usage)
        self._tokenizer = turn.model.tokenizer
        self._waiting: list[TokenLogprob] = []  # of tokens whose text is not certain yet

    def opening(self) -> bytes:
        """The role."""
        return self.chunk(_choice({"role": "assistant", "content": ""}))

    def token(self, event: TextEvent) -> bytes:
        """The token's text; no chunk while a character is incomplete."""
        if event.logprob is not None:
            self._waiting.append(event.logprob)
        if not event.text:
            return b""
        return self.chunk(_choice({"content": event.text}, logprobs=self._logprobs()))

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the usage where asked for, `[DONE]`."""
        return self.closing_chunks(event, _choice({}, event.reason, self._logprobs()))

    def _logprobs(self) -> dict[str, Any] | None:
        """Those since the last chunk. Mutates self."""
        found, self._waiting = self._waiting, []
        return chat_logprobs(self._tokenizer, found) if found else None


def _choice(
    delta: dict[str, Any],
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
