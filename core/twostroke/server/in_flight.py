"""The requests that are being answered right now, so that a stop can wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from twostroke.errors import UnavailableError


class InFlight:
    """Counts requests in and out. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self.count = 0
        self.is_stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Holds the server open while the body runs.

        Raises:
            UnavailableError: the server is stopping and takes no new requests.
        """
        if self.is_stopping:
            raise UnavailableError("The server is stopping; ask another one, or try again later.")
        self.count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self._idle.set()

    def refuse_new(self) -> None:
        """From now on new requests are refused; those running go on."""
        self.is_stopping = True

    async def wait_idle(self) -> None:
        """Returns when no request is running."""
        await self._idle.wait()
