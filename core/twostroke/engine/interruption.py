"""Ends the run of a prompt that nobody wants any more, and never another one's."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Interruption:
    """Knows whose prompt is being read right now.

    The lock is held while a run is interrupted, and the run's end takes it too: so between the
    look at who is running and the interruption no other run can begin.
    """

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._request_id: str | None = None
        self._was_interrupted = False
        self.num_interrupted = 0  # runs, since the start

    def begin(self, request_id: str) -> None:
        """A run for this request alone begins. Engine thread."""
        with self._lock:
            self._request_id = request_id
            self._was_interrupted = False

    def end(self, *, has_failed: bool) -> bool:
        """The run is over; True where it failed because it was interrupted. Engine thread."""
        with self._lock:
            self._request_id = None
            is_cut = has_failed and self._was_interrupted
            self.num_interrupted += is_cut
            return is_cut

    def interrupt(self, request_id: str | None = None) -> None:
        """Ends the run of this request if it is running, or whatever runs. Any thread.

        The sequence must have been marked for its end before.
        """
        with self._lock:
            running = self._request_id
            if running is not None and request_id in (None, running):
                self._was_interrupted = True
                self._interrupt()
