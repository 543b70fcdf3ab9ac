"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients speak them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from twostroke.server.answers import gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.chat_end import ended
from twostroke.server.fields import check_shape
from twostroke.server.model_for import model_for
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.anthropic.fields import MessagesBody, PromptFields
from twostroke.server.surfaces.anthropic.frames import MessageFrames
from twostroke.server.surfaces.anthropic.shapes import whole_message
from twostroke.server.text_threads import threads_for


async def messages(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/messages`, streamed or whole."""
    body = check_shape(MessagesBody, await read_json(request))
    body.refuse_unsupported()
    prompt, end = ended(body.conversation())
    wanted = Wanted(
        body.model,
        [prompt],
        body.sampling(),
        body.scheduled,
        constraint=body.constraint(),
        tools=body.tool_use(),
        reads_sections=True,
        variables=body.variables(),
        end=end,
    )
    turn = await begin(request, wanted)
    shows_thinking = body.shows_thinking
    if body.stream:
        return await stream(request, turn, MessageFrames(turn, shows_thinking=shows_thinking))
    (whole,) = await gather(turn)
    return json_reply(whole_message(turn, whole, shows_thinking=shows_thinking))


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/messages/count_tokens` with what the model would be given to read."""
    body = check_shape(PromptFields, await read_json(request))
    model = await model_for(request, body.model)
    prompt, end = ended(body.conversation())
    tools, variables = body.tool_use(), body.variables()
    ids, _ = await asyncio.get_running_loop().run_in_executor(
        threads_for(prompt), model.encode_timed, prompt, tools, variables, end
    )
    return json_reply({"input_tokens": len(ids)})
