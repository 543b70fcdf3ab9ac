"""The events of one answer, kept for whoever reads them, and for whoever comes back to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from twostroke.errors import RequestError

_MAX_BYTES = 1024 * 1024


class HeldAnswer:
    """The events of one answer, numbered from 1. Used in the event loop's thread."""

    def __init__(self, answer_id: str, scope: str, max_bytes: int = _MAX_BYTES) -> None:
        self.answer_id = answer_id
        self.scope = scope
        self.num_bytes = 0
        self.is_over = False
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._first = 1  # the number of the first event that is held
        self._num_sent = 0
        self._fault: Exception | None = None
        self._reader: object | None = None
        self._changed = asyncio.Event()

    @property
    def num_events(self) -> int:
        """Those that were made so far, held or not."""
        return self._first + len(self._events) - 1

    async def fill(self, lines: AsyncGenerator[bytes, None]) -> None:
        """Takes the lines of the answer, each as an event, and closes them.

        Waits where the buffer is full of what nobody has read.
        """
        try:
            async with aclosing(lines):
                async for written in lines:
                    for line in filter(None, written.split(b"\n")):
                        await self._add(line)
        except Exception as fault:
            self._fault = fault  # the reader tells of it
        finally:
            self.is_over = True
            self._tell()

    async def _add(self, line: bytes) -> None:
        number = self.num_events + 1
        event = b"id: %s.%d\ndata: %s\n\n" % (self.answer_id.encode(), number, line)
        while self._events and self.num_bytes + len(event) > self._max_bytes:
            if self._first <= self._num_sent:
                self.num_bytes -= len(self._events.pop(0))
                self._first += 1
            else:
                await self._changed.wait()
        self._events.append(event)
        self.num_bytes += len(event)
        self._tell()

    def check(self, after: int) -> None:
        """Checks that one may read on behind an event.

        Raises:
            RequestError: it was never sent, or what follows it is not held any more.
        """
        if after > self.num_events:
            raise wrong_id(f"the answer has {self.num_events} events so far")
        if after + 1 < self._first:
            raise gone()

    async def read(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events behind number `after`, to the end. Takes over from whoever reads now.

        Raises:
            TwostrokeError: the answer failed.
            ConnectionAbortedError: another has taken over.
        """
        me = self._reader = object()
        self._num_sent, number = after, after + 1
        self._tell()
        try:
            while True:
                if self._reader is not me:
                    raise ConnectionAbortedError("another connection goes on with this answer")
                if number <= self.num_events:
                    yield self._events[number - self._first]
                    if self._reader is me:
                        self._num_sent = number
                    number += 1
                    self._tell()
                elif self._fault is not None:
                    raise self._fault
                elif self.is_over:
                    return
                else:
                    await self._changed.wait()
        finally:
            if self._reader is me:
                self._reader = None
                self._tell()

    async def linger(self, timeout_s: float) -> None:
        """Returns when the answer is over, or when nobody has read it for so long.

        At once where no event was sent: without the id of one nobody can come back.
        """
        while self._num_sent and not self.is_over:
            is_read = self._reader is not None
            try:
                async with asyncio.timeout(None if is_read else timeout_s):
                    while not self.is_over and (self._reader is not None) is is_read:
                        await self._changed.wait()
            except TimeoutError:
                return

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def gone() -> RequestError:
    """Says that nothing is held behind an event."""
    return RequestError(
        "The answer of this Last-Event-ID is not held any more (server.resume_s says how long it "
        "is); send the request again without it.",
        param="Last-Event-ID",
        code="stream_not_found",
        status=404,
    )


def wrong_id(why: str) -> RequestError:
    """Says what is wrong with the id of an event."""
    return RequestError(f"The Last-Event-ID is wrong: {why}.", param="Last-Event-ID")
