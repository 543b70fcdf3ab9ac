"""`/generate` as server-sent events: the lines of NDJSON, each with an id to come back to."""

from __future__ import annotations

import asyncio

from aiohttp import web

from twostroke.errors import TwostrokeError
from twostroke.server.keys import CALLER, IN_FLIGHT
from twostroke.server.replies import dump
from twostroke.server.stream import frames_of, send
from twostroke.server.surface import error_body
from twostroke.server.surfaces.plain.frames import NdjsonFrames
from twostroke.server.surfaces.plain.held import HELD
from twostroke.server.surfaces.plain.held_answer import HeldAnswer
from twostroke.server.turn import Turn

_TYPE = "text/event-stream; charset=utf-8"


async def send_events(request: web.Request, turn: Turn, frames: NdjsonFrames) -> web.StreamResponse:
    """Answers `request` with the events of a turn, which it outlives by `server.resume_s` only.

    Raises:
        TwostrokeError: the turn failed before its first event; nothing was sent.
        ConnectionError: the stream was cut after that.
    """
    held = request.app[HELD]
    answer = held.hold(turn.request_id, request[CALLER].scope)
    turn.note_blocked(0.0)
    filling = asyncio.create_task(answer.fill(frames_of(turn, frames)))
    try:
        return await send(
            request, answer.read(0), _TYPE, fault=_fault, note_blocked=turn.note_blocked
        )
    except asyncio.CancelledError:
        await _stay(request, answer)
        raise
    except ConnectionError:
        try:
            await answer.linger(held.resume_s)
        except asyncio.CancelledError:  # only now the connection's end was noticed
            await _stay(request, answer)
        raise
    finally:
        filling.cancel()
        await asyncio.wait([filling])
        held.let_go(answer)


async def resume_events(request: web.Request, last_id: str) -> web.StreamResponse:
    """Answers `request` with what follows an event of an answer that another one has begun.

    Raises:
        RequestError: there is no such answer, or not so far back.
        ConnectionError: the stream was cut.
    """
    answer, after = request.app[HELD].find(request[CALLER].scope, last_id)
    return await send(
        request, answer.read(after), _TYPE, fault=_fault, note_blocked=lambda blocked_s: None
    )


async def _stay(request: web.Request, answer: HeldAnswer) -> None:
    """The client is gone and so the handler was cancelled: it goes on while it may be come back to.

    Raises:
        CancelledError: it may not.
    """
    resume_s = request.app[HELD].resume_s
    if not resume_s or request.app[IN_FLIGHT].is_stopping:
        raise asyncio.CancelledError
    task = asyncio.current_task()
    assert task is not None, "a handler runs in a task"
    task.uncancel()
    await answer.linger(resume_s)


def _fault(error: TwostrokeError) -> bytes:
    return b"data: " + dump(error_body(error)) + b"\n\n"
