"""Streams an answer: each token is written as soon as it exists.

The status line goes out with the first token, so whatever goes wrong before is a proper 4xx or
5xx. After that a fault must not look like an end: the surface's fault frame is sent where it has
one, and the connection is cut without the closing chunk, which every client reports as an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Protocol, runtime_checkable

from aiohttp import HttpVersion11, web

from twostroke.errors import EngineError, TwostrokeError
from twostroke.model import TextEvent
from twostroke.server.answers import AnswerEvent, answers
from twostroke.server.keys import REQUEST_ID
from twostroke.server.turn import Turn
from twostroke.types import FinishedEvent, ProgressEvent

logger = logging.getLogger("twostroke.server")
WRITE_TIMEOUT_S = 60.0  # a client that reads nothing for this long is let go
_FAULT_TIMEOUT_S = 5.0
# Browsers drop what a script has not read yet when its connection breaks; the reason goes ahead.
_FAULT_HEAD_START_S = 0.1


class Frames(Protocol):
    """How a surface writes the answers of a turn as bytes. An empty frame is not sent."""

    @property
    def content_type(self) -> str:
        """The Content-Type header."""
        ...

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """What stands before the first token of the choice `index`, whose first event this is."""
        ...

    def token(self, index: int, event: TextEvent) -> bytes:
        """One token of the choice `index`."""
        ...

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """What stands after the last token of the choice `index`."""
        ...

    def fault(self, error: TwostrokeError) -> bytes:
        """What tells a client that the answers broke off."""
        ...


@runtime_checkable
class ProgressFrames(Frames, Protocol):
    """Frames that also say how far prompts have come; for requests with `reports_progress`."""

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """How far the prompt of the choice `index` has come; before its `opening`."""
        ...


async def stream(request: web.Request, turn: Turn, frames: Frames) -> web.StreamResponse:
    """Answers `request` with the frames of a turn; those of several choices come as they are made.

    Raises:
        TwostrokeError: the turn failed before its first event; nothing was sent.
        ConnectionError: the stream was cut after that.
    """
    turn.note_blocked(0.0)
    written = frames_of(turn, frames)
    return await send(
        request, written, frames.content_type, fault=frames.fault, note_blocked=turn.note_blocked
    )


async def send(
    request: web.Request,
    written: AsyncGenerator[bytes, None],
    content_type: str,
    *,
    fault: Callable[[TwostrokeError], bytes],
    note_blocked: Callable[[float], None],
) -> web.StreamResponse:
    """Answers `request` with what is written, and closes that.

    `fault` is the frame that tells of an error; `note_blocked` is told of the seconds in which the
    client kept it waiting.

    Raises:
        TwostrokeError: from `written`, before anything was sent.
        ConnectionError: the stream was cut after that.
    """
    response = web.StreamResponse(
        headers={
            "Content-Type": content_type,
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would collect the chunks otherwise
        }
    )
    try:
        async with aclosing(written):
            async for frame in written:
                note_blocked(await _send(request, response, frame))
        if not response.prepared:
            await _send(request, response, b"")  # there was nothing to be written
        await _within(WRITE_TIMEOUT_S, response.write_eof())
    except BaseException as error:
        if response.prepared:
            await _break_off(request, response, fault, error)
        raise
    return response


async def frames_of(turn: Turn, frames: Frames) -> AsyncGenerator[bytes, None]:
    """The frames in order; the first is yielded only once the first event is there."""
    begun: set[int] = set()
    async with aclosing(answers(turn)) as events:
        async for index, event in events:
            if isinstance(event, ProgressEvent):
                if isinstance(frames, ProgressFrames):
                    yield frames.progress(index, event)
                continue
            if index not in begun:
                begun.add(index)
                yield await frames.opening(index, event)
            if isinstance(event, TextEvent):
                yield frames.token(index, event)
            else:
                for frame in frames.closing(index, event):
                    yield frame


async def _send(request: web.Request, response: web.StreamResponse, frame: bytes) -> float:
    """Writes a frame; answers for how many seconds the client kept it waiting.

    That is what the write took while bytes lay here that the client had left no room for.
    """
    if not response.prepared:
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        else:
            response.force_close()  # only the connection's end says where the answer ends
        await response.prepare(request)
    if not frame:
        return 0.0
    is_waiting = _has_unsent_bytes(request)
    began = time.monotonic()
    await _within(WRITE_TIMEOUT_S, response.write(frame))
    is_waiting = is_waiting or _has_unsent_bytes(request)
    return time.monotonic() - began if is_waiting else 0.0


def _has_unsent_bytes(request: web.Request) -> bool:
    transport = request.transport
    return transport is not None and transport.get_write_buffer_size() > 0


async def _within(timeout_s: float, writing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await writing
    except TimeoutError:
        raise ConnectionAbortedError(f"the client read nothing for {timeout_s:g} s") from None


async def _break_off(
    request: web.Request,
    response: web.StreamResponse,
    fault: Callable[[TwostrokeError], bytes],
    error: BaseException,
) -> None:
    """Ends a stream that has begun, so that no client takes it for complete.

    Raises:
        ConnectionError: where `error` is a fault, not a lost client or a cancellation.
    """
    is_fault = isinstance(error, Exception) and not isinstance(error, ConnectionError)
    if is_fault:
        is_known = isinstance(error, TwostrokeError)
        known = error if isinstance(error, TwostrokeError) else EngineError("Internal error.")
        logger.warning("%s: %s", request[REQUEST_ID], error, exc_info=None if is_known else error)
        told = fault(known)
        with suppress(ConnectionError):
            await _within(_FAULT_TIMEOUT_S, response.write(told))
        if told:
            await asyncio.sleep(_FAULT_HEAD_START_S)
    _cut(request, flush=is_fault)
    if is_fault:
        raise ConnectionAbortedError(f"cut after a fault: {error}") from error


def _cut(request: web.Request, *, flush: bool) -> None:
    """Closes the connection, with or without what is still in its buffer.

    Without the closing chunk the end of a chunked answer is an error by itself. An HTTP/1.0
    client knows no chunks: only a reset tells it.
    """
    transport = request.transport
    if transport is None:
        return
    if request.version < HttpVersion11:
        connection = transport.get_extra_info("socket")
        on_with_0_s = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, on_with_0_s)
        flush = False
    if flush:
        transport.close()
    else:
        transport.abort()
