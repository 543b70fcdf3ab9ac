"""SIGTERM ends a command as Ctrl-C does: its clean-up runs, and nothing half-written stays."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
]


class Terminated(BaseException):
    """Raised in the main thread by a signal; like KeyboardInterrupt, no `Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block the signals that end a program raise `Terminated`.

    A signal that is ignored (under `nohup`, say) or has a handler keeps its meaning; so does every
    signal where the block does not run in the main thread.
    """
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _raise)
                    stack.callback(signal.signal, number, signal.SIG_DFL)
        yield


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)
