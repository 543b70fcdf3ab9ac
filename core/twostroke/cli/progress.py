"""How far a long job is, on stderr: one changing line on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from twostroke.backends.hookspecs import Progress

_REDRAW_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressDisplay:
    """Shows `Progress` values as they come; call it with each. Use it as a context manager."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._started_s = time.monotonic()
        self._stage = ""
        self._drawn_s = 0.0

    def __call__(self, progress: Progress) -> None:
        """Shows one more step. Writes to the stream."""
        now = time.monotonic()
        is_new = progress.stage != self._stage
        if not is_new and (not self._is_terminal or now - self._drawn_s < _REDRAW_S):
            return
        percent = f"{min(max(progress.fraction, 0.0), 1.0):4.0%}"
        line = f"{percent}  {clock(now - self._started_s)}  {progress.stage}"
        if self._is_terminal:
            self._out.write(("\n" if is_new and self._stage else _CLEAR) + line)
        else:
            self._out.write(f"{line}\n")
        self._out.flush()
        self._stage, self._drawn_s = progress.stage, now

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._stage:
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
