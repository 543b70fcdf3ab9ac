"""`POST /api/chat` and `/api/generate`. Both stream unless they are told not to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from twostroke.model import Model
from twostroke.server.answers import gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.fields import check_shape
from twostroke.server.keys import MODELS
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.ollama.conversation import conversation
from twostroke.server.surfaces.ollama.fields import AnswerFields, ChatBody, GenerateBody
from twostroke.server.surfaces.ollama.frames import AnswerFrames, whole_answer
from twostroke.server.surfaces.ollama.names import served_name, tagged_name
from twostroke.server.surfaces.ollama.shapes import Piece, head, message_piece, response_piece
from twostroke.server.text_threads import threads_for
from twostroke.server.turn import Prompt


async def chat(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/chat`; without messages it only says that the model is loaded."""
    body = check_shape(ChatBody, await read_json(request))
    body.check_keep_alive()
    model = find_model(request, body.model)
    if not body.messages:
        return _loaded(body, model, message_piece)
    prompt = conversation(body.messages)
    wanted = Wanted(
        model.name,
        [prompt],
        body.sampling(),
        body.scheduled,
        constraint=body.constraint(),
        tools=body.tool_use(),
        reads_sections=True,
        variables=body.variables(model),
    )
    return await _answer(request, body, wanted, message_piece)


async def generate(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/generate`; without a prompt it only says that the model is loaded.

    A prompt becomes a message of the user, unless it is `raw` or the model has no chat template.
    Behind an answer comes its `context`, the ids of all that the model has read and written; sent
    back, it stands before the new prompt.
    """
    body = check_shape(GenerateBody, await read_json(request))
    body.check_keep_alive()
    body.refuse_unsupported()
    model = find_model(request, body.model)
    if not body.prompt:
        return _loaded(body, model, response_piece)
    is_chat = not body.raw and model.template is not None
    variables = body.variables(model)
    prompt: Prompt = _messages(body) if is_chat else body.prompt
    if body.context:
        prompt = [*body.context, *await _encode(model, prompt, variables if is_chat else {})]
    wanted = Wanted(
        model.name,
        [prompt],
        body.sampling(),
        body.scheduled,
        constraint=body.constraint(),
        reads_sections=is_chat,
        variables=variables if is_chat and not body.context else {},
    )
    return await _answer(request, body, wanted, response_piece, has_context=not body.raw)


def find_model(request: web.Request, name: str | None) -> Model:
    """The model of that name, with or without the tag `latest`.

    Raises:
        TwostrokeError: there is none, or it is loading.
    """
    models = request.app[MODELS]
    return models.find(served_name(name, models.names))


async def _answer(
    request: web.Request,
    body: AnswerFields,
    wanted: Wanted,
    piece: Piece,
    *,
    has_context: bool = False,
) -> web.StreamResponse:
    turn = await begin(request, wanted)
    name = body.model or tagged_name(turn.model.name)
    if body.stream is not False:
        frames = AnswerFrames(turn, name, piece, has_context=has_context)
        return await stream(request, turn, frames)
    (whole,) = await gather(turn)
    return json_reply(whole_answer(turn, whole, name, piece, has_context=has_context))


def _loaded(body: AnswerFields, model: Model, piece: Piece) -> web.Response:
    """One object whether streamed or not, which is one line."""
    reason = "unload" if body.unloads else "load"
    name = body.model or tagged_name(model.name)
    return json_reply({**head(name), **piece("", "", ()), "done": True, "done_reason": reason})


def _messages(body: GenerateBody) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": body.prompt}]


async def _encode(model: Model, prompt: Prompt, variables: Mapping[str, Any]) -> Sequence[int]:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads_for(prompt), model.encode, prompt, None, variables)
