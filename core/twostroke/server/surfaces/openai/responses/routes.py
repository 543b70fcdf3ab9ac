"""`/v1/responses`, as OpenAI's clients speak it."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from aiohttp import web

from twostroke.errors import EngineError, RequestError, TwostrokeError
from twostroke.model import TextEvent
from twostroke.server.answers import answers
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.fields import check_shape
from twostroke.server.keys import CALLER, REQUEST_ID
from twostroke.server.replies import dump, json_reply
from twostroke.server.stream import frames_of, send
from twostroke.server.surfaces.openai.responses.checks import check_body, response_constraint
from twostroke.server.surfaces.openai.responses.events import ResponseEvents, ResponseFrames
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.responses.items import Item, check_items
from twostroke.server.surfaces.openai.responses.messages import check_results, messages_of
from twostroke.server.surfaces.openai.responses.store import RESPONSES, Stored
from twostroke.server.surfaces.openai.responses.tools import asked_tools
from twostroke.server.turn import Turn
from twostroke.types import FinishedEvent

logger = logging.getLogger("twostroke.server")
_CONVERSATION = re.compile(r"(messages|prompt)\b")


async def create_response(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/responses`, streamed or whole."""
    body, given, turn = await _begun(request)
    store, scope = request.app[RESPONSES], request[CALLER].scope
    # What it takes is what was sent and what is answered: both were counted on their way.
    num_given = len(await request.read())

    def keep(ended: dict[str, Any]) -> None:
        store.add(scope, Stored(ended, tuple(given), num_given + len(dump(ended))))

    is_stored = body.store is not False and store.max_bytes > 0
    events = ResponseEvents(turn, body, keep if is_stored else None)
    if body.stream:
        obfuscates = bool(body.stream_options and body.stream_options.include_obfuscation)
        frames = ResponseFrames(events, obfuscates=obfuscates)
        turn.note_blocked(0.0)
        with _named_input():
            return await send(
                request,
                _written(request, turn, frames),
                frames.content_type,
                fault=frames.fault,
                note_blocked=turn.note_blocked,
            )
    with _named_input():
        return json_reply(await _whole(turn, events))


async def _written(
    request: web.Request, turn: Turn, frames: ResponseFrames
) -> AsyncGenerator[bytes, None]:
    """The frames; a fault within them is the last, since it ends a response as it should be ended.

    Raises:
        TwostrokeError: before the first.
    """
    has_begun = False
    try:
        async with aclosing(frames_of(turn, frames)) as written:
            async for frame in written:
                has_begun = True
                yield frame
    except TwostrokeError as error:
        if not has_begun:
            raise
        logger.warning("%s: %s", request[REQUEST_ID], error)
        yield frames.fault(error)


async def count_input_tokens(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/responses/input_tokens`: what a response would be given."""
    _, _, turn = await _begun(request)
    return json_reply({"object": "response.input_tokens", "input_tokens": turn.num_prompt_tokens})


async def _begun(request: web.Request) -> tuple[ResponsesBody, list[Item], Turn]:
    """The checked body, its own input, and the turn."""
    raw = await read_json(request)
    body = check_shape(ResponsesBody, raw)
    check_body(body, raw)
    store, scope = request.app[RESPONSES], request[CALLER].scope
    given = check_items(body.input, partial(store.find_item, scope))
    context = store.context(scope, body.previous_response_id)
    check_results(context, given)
    messages = messages_of([*context, *given])
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    wanted = Wanted(
        body.model,
        [messages],
        body.sampling(),
        body.scheduled,
        constraint=response_constraint(body, raw),
        tools=asked_tools(body),
        reads_sections=True,
        variables=body.variables(),
    )
    with _named_input():
        return body, given, await begin(request, wanted)


@contextmanager
def _named_input() -> Iterator[None]:
    """Errors of a conversation by the name that it has here."""
    try:
        yield
    except RequestError as error:
        if error.param is None or not _CONVERSATION.match(error.param):
            raise
        raise RequestError(
            str(error), param="input", code=error.code, status=error.status
        ) from None


async def _whole(turn: Turn, events: ResponseEvents) -> dict[str, Any]:
    async with aclosing(answers(turn)) as found:
        async for _, event in found:
            # What streams tell step by step is passed over; the end is enough.
            if isinstance(event, TextEvent):
                deque(events.token(event), maxlen=0)
            elif isinstance(event, FinishedEvent):
                deque(events.end(event), maxlen=0)
    if events.body is None:
        raise EngineError("The answer ended before it was complete; try again.")
    return events.body
