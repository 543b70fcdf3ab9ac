"""The API that KoboldAI's clients speak, on twostroke: whole answers and streamed ones.

A surface translates: a body into a `Wanted`, the answer's events into the bytes that its clients
read. Tokenising, waiting in the queue, cancelling and all errors are the server's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web
from pydantic import ConfigDict

from twostroke.backends import hookimpl
from twostroke.errors import TwostrokeError
from twostroke.model import TextEvent
from twostroke.server.answers import AnswerEvent, gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.fields import Int, QueueFields, check_shape
from twostroke.server.keys import MODELS
from twostroke.server.replies import dump, json_reply
from twostroke.server.stream import stream
from twostroke.server.surface import Route, Surface
from twostroke.types import FinishedEvent

# What its clients call a value: what `SamplingParams` calls it.
_NAMES = {
    "max_length": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "rep_pen": "repetition_penalty",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
}


class KoboldBody(QueueFields):
    """The body of a request. Clients send dozens of other fields, which are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    prompt: str
    max_length: Int = 100
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    rep_pen: float | None = None
    stop_sequence: list[str] | None = None
    sampler_seed: Int | None = None

    def wanted(self) -> Wanted:
        """The same in the server's words; what the values may be is checked by the model."""
        given = {theirs: getattr(self, name) for name, theirs in _NAMES.items()}
        given = {name: value for name, value in given.items() if value is not None}
        return Wanted(None, [self.prompt], given, self.scheduled)


class KoboldFrames:
    """Server-sent events, one a token."""

    content_type = "text/event-stream; charset=utf-8"

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """Nothing."""
        return b""

    def token(self, index: int, event: TextEvent) -> bytes:
        """The token's text; nothing while a character is incomplete."""
        return _event("message", {"token": event.text}) if event.text else b""

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason."""
        yield _event("message", {"token": "", "finish_reason": event.reason})

    def fault(self, error: TwostrokeError) -> bytes:
        """Tells that the answer broke off."""
        return _event("error", error_body(error))


def error_body(error: TwostrokeError) -> Mapping[str, Any]:
    """An error as its clients read it."""
    return {"detail": {"msg": str(error), "type": error.code}}


async def generate(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/v1/generate`."""
    body = check_shape(KoboldBody, await read_json(request))
    turn = await begin(request, body.wanted())
    (answer,) = await gather(turn)
    return json_reply({"results": [{"text": answer.text, "finish_reason": answer.finished.reason}]})


async def generate_stream(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/extra/generate/stream`."""
    body = check_shape(KoboldBody, await read_json(request))
    return await stream(request, await begin(request, body.wanted()), KoboldFrames())


async def show_model(request: web.Request) -> web.StreamResponse:
    """Answers `GET /api/v1/model`."""
    return json_reply({"result": request.app[MODELS].find(None).name})


def _event(kind: str, value: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dump(value) + b"\n\n"


@hookimpl
def twostroke_surfaces() -> list[Surface]:
    """The surface of this plugin."""
    answer = {"type": "object", "properties": {"results": {"type": "array"}}}
    return [
        Surface(
            name="kobold",
            api_version=1,
            summary="what KoboldAI's clients speak",
            routes=(
                Route(
                    "POST",
                    "/api/v1/generate",
                    generate,
                    "The text that follows a prompt.",
                    body=KoboldBody,
                    reply=answer,
                ),
                Route(
                    "POST",
                    "/api/extra/generate/stream",
                    generate_stream,
                    "The same, token by token.",
                    body=KoboldBody,
                    streams="text/event-stream",
                ),
                Route("GET", "/api/v1/model", show_model, "The model's name."),
            ),
            error_body=error_body,
        )
    ]
