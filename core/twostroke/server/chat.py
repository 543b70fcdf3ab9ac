"""`POST /v1/chat/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from twostroke.model import TextEvent
from twostroke.server.body import read_json
from twostroke.server.fields import Messages, check_shape
from twostroke.server.openai_shapes import OpenAIFields, SseFrames, answer_body, begin
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.structure import asked_constraint
from twostroke.server.turn import Turn, gather
from twostroke.server.unsupported import refuse_unsupported
from twostroke.types import FinishedEvent


class ChatBody(OpenAIFields):
    """The body of a chat request."""

    messages: Messages


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/chat/completions`, streamed or whole."""
    raw = await read_json(request)
    body = check_shape(ChatBody, raw)
    refuse_unsupported(raw)
    turn = await begin(request, body, body.messages, asked_constraint(raw))
    if body.stream:
        return await stream(request, turn, ChatFrames(turn, wants_usage=body.wants_usage))
    whole = await gather(turn)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": whole.text, "refusal": None},
        "logprobs": None,
        "finish_reason": whole.finished.reason,
    }
    return json_reply(answer_body(turn, "chat.completion", "chatcmpl", choice))


class ChatFrames(SseFrames):
    """Chunks with deltas; the role comes first, the finish reason last."""

    def __init__(self, turn: Turn, *, wants_usage: bool) -> None:
        super().__init__(turn, "chat.completion.chunk", "chatcmpl", wants_usage=wants_usage)

    def opening(self) -> bytes:
        """The role."""
        return self.chunk(_choice({"role": "assistant", "content": ""}))

    def token(self, event: TextEvent) -> bytes:
        """The token's text; no chunk while a character is incomplete."""
        return self.chunk(_choice({"content": event.text})) if event.text else b""

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the usage where asked for, `[DONE]`."""
        return self.closing_chunks(event, _choice({}, event.reason))


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
