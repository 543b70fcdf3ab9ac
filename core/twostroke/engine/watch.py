"""Notices a run that does not come back.

A run that takes longer than it may is interrupted first. Where it comes back it has simply failed.
Where it does not, not even in a time of grace, it is given up: its thread is in native code that
nothing can end, so the engine goes on without it, and the thread ends when the run does, if ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.life.timeline import Clock

log = logging.getLogger(__name__)


class GivenUp(BaseException):
    """Raised in a thread whose run came back after it was given up.

    No `Exception`, so that nothing of what the thread was in the middle of goes on. `release` frees
    what the run was the last to need.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self.release = release


@dataclass(slots=True, eq=False)
class WatchedRun:
    """A call to the device. `is_cut`: it took too long; `is_unwanted`: nobody waits for it."""

    began_at: float
    allowed_s: float
    release: Callable[[], None]
    cut_at: float | None = None
    is_unwanted: bool = False
    is_given_up: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether it was interrupted for the time it took."""
        return self.cut_at is not None


class RunWatch:
    """Knows what the engine thread is in the middle of.

    `grace_s` is what a run that was interrupted has to come back.
    The lock is held while a run is interrupted, and the end of each run takes it too, so an
    interruption never reaches the run after.
    """

    def __init__(self, clock: Clock, *, grace_s: float) -> None:
        self._clock = clock
        self.grace_s = grace_s
        self._lock = threading.Lock()
        self._current: WatchedRun | None = None

    def begin(self, allowed_s: float, release: Callable[[], None]) -> WatchedRun:
        """A run begins. `release` is called after it where it is given up. Engine thread."""
        run = self._current = WatchedRun(self._clock(), allowed_s, release)
        return run

    def end(self, run: WatchedRun) -> None:
        """It came back.

        Raises:
            GivenUp: too late.
        """
        with self._lock:
            if run.is_given_up:
                raise GivenUp(run.release)
            self._current = None

    def interrupt(self, interrupt: Callable[[], bool]) -> bool:
        """Ends the present run, if there is one, because nobody waits for it. Any thread.

        False where `interrupt` says that it could not.
        """
        with self._lock:
            if self._current is None:
                return False
            self._current.is_unwanted = True
            return interrupt()

    def look(self, interrupt: Callable[[], bool]) -> WatchedRun | None:
        """Interrupts a run that takes too long; answers one that is given up in this moment."""
        with self._lock:
            run = self._current
            if run is None:
                return None
            now = self._clock()
            if run.cut_at is None:
                if now - run.began_at >= run.allowed_s:
                    run.cut_at = now
                    interrupt()
            elif now - run.cut_at >= self.grace_s:
                return self._give_up(run)
            return None

    def give_up(self) -> bool:
        """Gives up the present run; False where there is none."""
        with self._lock:
            return self._current is not None and self._give_up(self._current) is not None

    def _give_up(self, run: WatchedRun) -> WatchedRun:
        run.is_given_up = True
        self._current = None
        return run


class Watchdog:
    """Looks at the watch now and then, in a thread of its own."""

    def __init__(self, look: Callable[[], None], period_s: float) -> None:
        self._look = look
        self._period_s = period_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twostroke-watchdog", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Looks no more. Does not wait for it."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            try:
                self._look()
            except Exception:
                log.exception("the watchdog failed to look after the engine")
