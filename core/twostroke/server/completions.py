"""`POST /v1/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.model import TextEvent
from twostroke.server.body import read_json
from twostroke.server.fields import check_shape
from twostroke.server.openai_shapes import OpenAIFields, SseFrames, answer_body, begin
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.structure import asked_constraint
from twostroke.server.turn import Prompt, Turn, gather
from twostroke.server.unsupported import refuse_unsupported
from twostroke.types import FinishedEvent


async def completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/completions`, streamed or whole."""
    raw = await read_json(request)
    body = check_shape(OpenAIFields, raw)
    refuse_unsupported(raw)
    turn = await begin(request, body, one_prompt(raw), asked_constraint(raw))
    if body.stream:
        return await stream(request, turn, CompletionFrames(turn, wants_usage=body.wants_usage))
    whole = await gather(turn)
    choice = _choice(whole.text, whole.finished.reason)
    return json_reply(answer_body(turn, "text_completion", "cmpl", choice))


def one_prompt(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a body: a string, token ids, or a list with one of them.

    Raises:
        RequestError: there is none, there are several, or it is something else.
    """
    value = body.get("prompt")
    if value is None:
        raise RequestError("prompt is missing.", param="prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise RequestError(
                f"prompt holds {len(value)} prompts; this server takes one a request. Send them "
                "as requests of their own: they are batched all the same.",
                param="prompt",
                code="unsupported_parameter",
            )
        value = value[0]
    is_ids = isinstance(value, list) and all(type(item) is int for item in value)
    if isinstance(value, str) or is_ids:
        return value
    raise RequestError("prompt must be a string or a list of token ids.", param="prompt")


class CompletionFrames(SseFrames):
    """Chunks with text; the finish reason comes last."""

    def __init__(self, turn: Turn, *, wants_usage: bool) -> None:
        super().__init__(turn, "text_completion", "cmpl", wants_usage=wants_usage)

    def opening(self) -> bytes:
        """Nothing: this surface has no roles."""
        return b""

    def token(self, event: TextEvent) -> bytes:
        """The token's text; no chunk while a character is incomplete."""
        return self.chunk(_choice(event.text)) if event.text else b""

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the usage where asked for, `[DONE]`."""
        return self.closing_chunks(event, _choice("", event.reason))


def _choice(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
