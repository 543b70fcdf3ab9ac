"""Files that are read again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from twostroke.errors import ConfigError

logger = logging.getLogger("twostroke.server")
PERIOD_S = 1.0

Read = TypeVar("Read")


class Watch(Generic[Read]):
    """Keeps something equal to what stands in some files.

    Looked at is when they were written, how long and which they are, so that a file that was put in
    the place of another, or behind a link, is noticed too. What cannot be read changes nothing, and
    the log says so; it is tried again when the files change again.
    """

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        *,
        read: Callable[[], Read],
        take: Callable[[Read], None],
    ) -> None:
        """`read` runs in a thread and raises ConfigError; `take` runs in the event loop."""
        self._what, self._paths = what, tuple(paths)
        self._read, self._take = read, take
        self._seen: object = None

    async def start(self) -> None:
        """Reads the files for the first time.

        Raises:
            ConfigError: they cannot be read.
        """
        self._seen = await asyncio.to_thread(self._look)
        self._take(await asyncio.to_thread(self._read))

    async def reread(self, *, even_unchanged: bool = False) -> None:
        """Reads the files again if they have changed."""
        seen = await asyncio.to_thread(self._look)
        if seen == self._seen and not even_unchanged:
            return
        self._seen = seen  # of before the reading: what changes meanwhile is noticed next time
        try:
            self._take(await asyncio.to_thread(self._read))
        except ConfigError as error:
            logger.warning("%s: %s. What was read before goes on to count.", self._what, error)
        else:
            logger.info("%s: read again", self._what)

    async def run(self) -> None:
        """Looks every second, until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.reread()

    def _look(self) -> object:
        return [state_of(path) for path in self._paths]


def state_of(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
