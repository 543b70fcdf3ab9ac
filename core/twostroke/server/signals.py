"""Ctrl-C, SIGTERM and a closed terminal: the first asks, the second insists, the third kills.

SIGHUP that comes from somebody else than a closed terminal has the configuration read again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
]
_SIGHUP = getattr(signal, "SIGHUP", None)


class StopSignals:
    """Two events that signals set, for as long as the context is entered.

    `stop` is set by the first signal, `hurry` by the second, which also gives the signals their
    default meaning back, so that a third one ends the process whatever hangs. `number` is the
    last signal's. SIGHUP is one of them only where there is no `on_reload`, or where the terminal
    has gone that there was.
    """

    def __init__(self, on_reload: Callable[[], None] | None = None) -> None:
        self._on_reload = on_reload
        self._had_terminal = _has_terminal()
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.number = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()

        def on_signal(number: int, _frame: FrameType | None = None) -> None:
            loop.call_soon_threadsafe(self._note, number)

        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN and number == _SIGHUP:
                continue  # started by `nohup`, to outlive its terminal
            self._previous[number] = previous
            # The loop's own handlers wake it from its sleep; on Windows there are none.
            try:
                loop.add_signal_handler(number, on_signal, number)
            except NotImplementedError:
                signal.signal(number, on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            _restore(number, previous or signal.SIG_DFL)

    def _note(self, number: int) -> None:
        is_hang_up = self._had_terminal and not _has_terminal()
        if number == _SIGHUP and self._on_reload is not None and not is_hang_up:
            self._on_reload()
            return
        self.number = number
        if not self.stop.is_set():
            self.stop.set()
            return
        self.hurry.set()
        for each in self._previous:
            _restore(each, signal.SIG_DFL)


def _has_terminal() -> bool:
    """Whether the process has a terminal that may be closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | getattr(os, "O_NOCTTY", 0)))
    except OSError:
        return False
    return True


def _restore(number: int, handler: object) -> None:
    with suppress(NotImplementedError):
        asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(number, handler)  # type: ignore[arg-type]  # what getsignal answered
