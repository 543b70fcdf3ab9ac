"""`POST /api/chat` and `/api/generate`. Both stream unless they are told not to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from twostroke.model import Model
from twostroke.server.admin import leave
from twostroke.server.answers import gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.chat_end import ended
from twostroke.server.fields import check_shape
from twostroke.server.keys import MODELS
from twostroke.server.model_for import model_for, named
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.ollama.conversation import conversation
from twostroke.server.surfaces.ollama.fields import AnswerFields, OllamaChatBody, OllamaGenerateBody
from twostroke.server.surfaces.ollama.frames import AnswerFrames, Writing, whole_answer
from twostroke.server.surfaces.ollama.names import known_names, served_name, tagged_name
from twostroke.server.surfaces.ollama.shapes import Piece, head, message_piece, response_piece
from twostroke.server.text_threads import threads_for
from twostroke.server.turn import Prompt


async def chat(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/chat`; without messages it only loads or unloads the model."""
    body = check_shape(OllamaChatBody, await read_json(request))
    body.check_keep_alive()
    if not body.messages:
        return await _without_answer(request, body, message_piece)
    model, load_s = await _model(request, body)
    prompt, end = ended(conversation(body.messages))
    wanted = Wanted(
        model.name,
        [prompt],
        body.sampling(),
        body.scheduled,
        constraint=body.constraint(),
        tools=body.tool_use(),
        reads_sections=True,
        variables=body.variables(model),
        end=end,
    )
    return await _answer(request, body, wanted, Writing(message_piece, load_s))


async def generate(request: web.Request) -> web.StreamResponse:
    """Answers `POST /api/generate`; without a prompt it only loads or unloads the model.

    A prompt becomes a message of the user, unless it is `raw` or the model has no chat template.
    Behind an answer comes its `context`, the ids of all that the model has read and written; sent
    back, it stands before the new prompt.
    """
    body = check_shape(OllamaGenerateBody, await read_json(request))
    body.check_keep_alive()
    body.refuse_unsupported()
    if not body.prompt:
        return await _without_answer(request, body, response_piece)
    model, load_s = await _model(request, body)
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
    return await _answer(request, body, wanted, Writing(response_piece, load_s, not body.raw))


async def _model(request: web.Request, body: AnswerFields) -> tuple[Model, float]:
    """The model that is asked for, and for how many seconds it had to be waited for.

    Raises:
        TwostrokeError: there is none of that name, or it could not be loaded.
    """
    began = time.monotonic()
    model = await model_for(request, _name(request, body))
    return model, time.monotonic() - began


def _name(request: web.Request, body: AnswerFields) -> str | None:
    return served_name(body.model, known_names(request.app[MODELS]))


async def _answer(
    request: web.Request, body: AnswerFields, wanted: Wanted, writing: Writing
) -> web.StreamResponse:
    turn = await begin(request, wanted)
    name = body.model or tagged_name(turn.model.name)
    if body.stream is not False:
        return await stream(request, turn, AnswerFrames(turn, name, writing))
    (whole,) = await gather(turn)
    return json_reply(whole_answer(turn, whole, name, writing))


async def _without_answer(
    request: web.Request, body: AnswerFields, piece: Piece
) -> web.StreamResponse:
    """Loads the model, or for an operator unloads it; one object, which is one line of a stream.

    Raises:
        TwostrokeError: there is none of that name, it could not be loaded, or the caller is none
            who unloads models.
    """
    if body.unloads:
        served = named(request, _name(request, body))
        await leave(request, served)
        name, reason = served.name, "unload"
    else:
        model, _ = await _model(request, body)
        name, reason = model.name, "load"
    line = {**head(body.model or tagged_name(name)), **piece("", "", ())}
    return json_reply({**line, "done": True, "done_reason": reason})


def _messages(body: OllamaGenerateBody) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": body.prompt}]


async def _encode(model: Model, prompt: Prompt, variables: Mapping[str, Any]) -> Sequence[int]:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads_for(prompt), model.encode, prompt, None, variables)
