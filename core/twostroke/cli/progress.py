"""How far a long job is, on stderr: one changing line on a terminal, a line a stage elsewhere.

What is left is what passed, in proportion to the fractions that the job reports; it never grows.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from twostroke.backends.hookspecs import Progress

_REDRAW_S = 0.1
_TICK_S = 1.0
_CLEAR = "\r\x1b[K"
_LEAST_FRACTION = 0.1  # before that, what is left would be a guess


class ProgressDisplay:
    """Shows `Progress` values as they come; call it with each. Use it as a context manager.

    On a terminal the clock goes on while a stage says nothing, and log records get lines of their
    own. A fraction that falls back to 0 begins another job.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._started_s = time.monotonic()
        self._shown: Progress | None = None
        self._ends_s = math.inf  # when it will have ended, as far as is known
        self._drawn_s = 0.0
        self._fraction = 0.0
        self._is_drawn = False  # the cursor stands behind the changing line
        self._lock = threading.RLock()  # the clock, log records and the job may come at once
        self._is_over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="twostroke-clock", daemon=True)

    def __call__(self, progress: Progress) -> None:
        """Shows one more step. Writes to the stream."""
        now = time.monotonic()
        with self._lock:
            is_new = self._shown is None or progress.stage != self._shown.stage
            self._follow(progress, now)
            if is_new or (self._is_terminal and now - self._drawn_s >= _REDRAW_S):
                self._draw(now)

    def _follow(self, progress: Progress, now: float) -> None:
        if progress.fraction <= 0.0 and self._fraction > 0.0:
            self._started_s, self._fraction, self._ends_s = now, 0.0, math.inf
        self._shown = progress
        self._fraction = max(self._fraction, min(progress.fraction, 1.0))
        if self._fraction >= _LEAST_FRACTION:
            passed_s = now - self._started_s
            self._ends_s = min(self._ends_s, self._started_s + passed_s / self._fraction)

    def _draw(self, now: float) -> None:
        assert self._shown is not None
        self._drawn_s = now
        is_known = self._ends_s < math.inf and self._fraction < 1.0
        left = f"  {clock(max(self._ends_s - now, 0.0))} left" if is_known else ""
        line = f"{self._fraction:4.0%}  {clock(now - self._started_s)}{left}  {self._shown.stage}"
        if self._is_terminal:
            self._out.write(_CLEAR + line)
            self._is_drawn = True
        else:
            self._out.write(f"{line}\n")
        self._out.flush()

    def _tick(self) -> None:
        while not self._is_over.wait(_TICK_S):
            with self._lock:
                if self._shown is not None and not self._is_over.is_set():
                    self._draw(time.monotonic())

    def _make_way(self, record: logging.LogRecord) -> bool:
        """A filter that lets every record pass, onto a line of its own."""
        with self._lock:
            if self._is_drawn:
                self._out.write(_CLEAR)
                self._out.flush()
                self._is_drawn = False
        return True

    def __enter__(self) -> ProgressDisplay:
        if self._is_terminal:
            for handler in logging.getLogger().handlers:
                handler.addFilter(self._make_way)
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_terminal:
            return
        self._is_over.set()
        self._clock.join()
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self._make_way)
        if self._is_drawn:
            self._out.write("\n")
            self._out.flush()


def clock(seconds: float) -> str:
    """`1:05` for 65 seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def size(num_bytes: int) -> str:
    """`146 MB` for 146,000,000 bytes, three digits at most."""
    value, units = float(num_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return (
        f"{value:.0f} {units[0]}"
        if value >= 99.5 or units[0] == "bytes"
        else (f"{value:.3g} {units[0]}")
    )
