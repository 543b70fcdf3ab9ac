"""Ctrl-C, SIGTERM and a closed terminal: the first asks, the second insists, the third kills."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from types import FrameType

_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
]


class StopSignals:
    """Two events that signals set, for as long as the context is entered.

    `stop` is set by the first signal, `hurry` by the second, which also gives the signals their
    default meaning back, so that a third one ends the process whatever hangs. `number` is the
    last signal's.
    """

    def __init__(self) -> None:
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
            if previous is signal.SIG_IGN and number == getattr(signal, "SIGHUP", None):
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
        self.number = number
        if not self.stop.is_set():
            self.stop.set()
            return
        self.hurry.set()
        for each in self._previous:
            _restore(each, signal.SIG_DFL)


def _restore(number: int, handler: object) -> None:
    with suppress(NotImplementedError):
        asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(number, handler)  # type: ignore[arg-type]  # what getsignal answered
