"""Events of requests as one iterator: for asyncio and for plain code.

What is asked for together (one request, or the choices and prompts of one HTTP request) is
iterated together, each event with the index of its request. Both kinds of iterator submit when
they are made (`Engine.submit_all`: all requests are taken or none), so a refusal is raised before
anything is iterated; both abort what has not ended when they are closed, cancelled or dropped.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from twostroke.engine.engine import NOT_PREPARED, Engine
from twostroke.engine.intake import Sink
from twostroke.timings import Preparation
from twostroke.types import Event, FailedEvent, FinishedEvent, Request

IndexedEvent = tuple[int, Event]
"""The index of a request, and one of its events."""

_POLL_S = 0.5


class _Alive:
    """Which of the requests have not ended; what both kinds of iterator share."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._ids = [request.request_id for request in requests]
        self._alive: set[int] = set()  # nothing is aborted that was refused

    def _submit(
        self,
        requests: Sequence[Request],
        put: Callable[[IndexedEvent], None],
        arrived_at: float | None,
        prepared: Preparation,
    ) -> None:
        def sink_of(index: int) -> Sink:  # called in the engine thread
            return lambda event: put((index, event))

        self._engine.submit_all(
            requests,
            [sink_of(index) for index in range(len(requests))],
            arrived_at=time.monotonic() if arrived_at is None else arrived_at,
            prepared=prepared,
        )
        self._alive.update(range(len(requests)))

    def _take(self, item: IndexedEvent) -> IndexedEvent:
        index, event = item
        if isinstance(event, FinishedEvent | FailedEvent):
            self._alive.discard(index)
        return item

    def abort(self) -> None:
        """Ends every sequence that has not ended; nothing more is iterated."""
        for index in sorted(self._alive):
            self._engine.abort(self._ids[index])
        self._alive.clear()

    def abort_one(self, index: int) -> None:
        """Ends one sequence; its terminal event is iterated still."""
        if index in self._alive:
            self._engine.abort(self._ids[index])

    def __del__(self) -> None:
        if getattr(self, "_alive", None):
            self.abort()


class AsyncEvents(_Alive):
    """Asynchronous iterator over (index, event); ends after the last terminal event.

    Make it, iterate it and close it in one event loop. What is not read yet is kept, at most
    one event a token.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        """Submits the requests; `arrived_at` is `time.monotonic()`, None is now.

        Raises:
            RequestError, ContextLengthError, UnavailableError: from `Engine.submit_all`.
        """
        super().__init__(engine, requests)
        self._events: asyncio.Queue[IndexedEvent] = asyncio.Queue()
        loop, events = asyncio.get_running_loop(), self._events

        def put(item: IndexedEvent) -> None:  # in the engine thread; holds no reference to self
            loop.call_soon_threadsafe(events.put_nowait, item)

        self._submit(requests, put, arrived_at, prepared)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> IndexedEvent:
        if not self._alive:
            raise StopAsyncIteration
        try:
            return self._take(await self._events.get())
        except asyncio.CancelledError:
            self.abort()
            raise

    async def aclose(self) -> None:
        """The same as `abort`; lets `contextlib.aclosing` end the sequences."""
        self.abort()


class SyncEvents(_Alive):
    """Iterator over (index, event); ends after the last terminal event."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        """Submits the requests; `arrived_at` is `time.monotonic()`, None is now.

        Raises:
            RequestError, ContextLengthError, UnavailableError: from `Engine.submit_all`.
        """
        super().__init__(engine, requests)
        self._events: queue.SimpleQueue[IndexedEvent] = queue.SimpleQueue()
        self._submit(requests, self._events.put, arrived_at, prepared)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> IndexedEvent:
        while self._alive:
            try:  # in slices: on Windows a wait without end cannot be ended by Ctrl-C
                return self._take(self._events.get(timeout=_POLL_S))
            except queue.Empty:
                continue
            except BaseException:
                self.abort()
                raise
        raise StopIteration

    def close(self) -> None:
        """The same as `abort`."""
        self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
