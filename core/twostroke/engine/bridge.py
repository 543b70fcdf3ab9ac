"""Events of one request as an iterator: for asyncio and for plain code.

Both submit when they are made, so a refusal is raised before anything is iterated; both abort
the sequence when they are closed, cancelled or dropped before its end.
"""

from __future__ import annotations

import asyncio
import queue
import time
from types import TracebackType
from typing import Self

from twostroke.engine.engine import NOT_PREPARED, Engine
from twostroke.engine.intake import Sink
from twostroke.timings import Preparation
from twostroke.types import Event, Request, TokenEvent

_POLL_S = 0.5


class AsyncEvents:
    """Asynchronous iterator over the events of one request; ends after the terminal event.

    Make it, iterate it and close it in one event loop. What is not read yet is kept, at most
    one event a token.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._is_over = False
        self._must_abort = False
        loop, events = asyncio.get_running_loop(), self._events

        def sink(event: Event) -> None:  # runs in the engine thread; holds no reference to self
            loop.call_soon_threadsafe(events.put_nowait, event)

        _submit(engine, request, sink, arrived_at, prepared)
        self._must_abort = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
        except asyncio.CancelledError:
            self.abort()
            raise
        if not isinstance(event, TokenEvent):
            self._is_over = True
            self._must_abort = False
        return event

    def abort(self) -> None:
        """Ends the sequence if it has not ended; nothing more is iterated."""
        self._is_over = True
        if self._must_abort:
            self._must_abort = False
            self._engine.abort(self._request_id)

    async def aclose(self) -> None:
        """The same as `abort`; lets `contextlib.aclosing` end the sequence."""
        self.abort()

    def __del__(self) -> None:
        if getattr(self, "_must_abort", False):
            self.abort()


class SyncEvents:
    """Iterator over the events of one request; ends after the terminal event."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._is_over = False
        self._must_abort = False
        _submit(engine, request, self._events.put, arrived_at, prepared)
        self._must_abort = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._is_over:
            raise StopIteration
        event = self._wait()
        if not isinstance(event, TokenEvent):
            self._is_over = True
            self._must_abort = False
        return event

    def close(self) -> None:
        """Ends the sequence if it has not ended; nothing more is iterated."""
        self._is_over = True
        if self._must_abort:
            self._must_abort = False
            self._engine.abort(self._request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_must_abort", False):
            self.close()

    def _wait(self) -> Event:
        while True:
            try:  # in slices: on Windows a wait without end cannot be ended by Ctrl-C
                return self._events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            except BaseException:
                self.close()
                raise


def _submit(
    engine: Engine,
    request: Request,
    sink: Sink,
    arrived_at: float | None,
    prepared: Preparation,
) -> None:
    engine.submit(
        request,
        sink,
        arrived_at=time.monotonic() if arrived_at is None else arrived_at,
        prepared=prepared,
    )
