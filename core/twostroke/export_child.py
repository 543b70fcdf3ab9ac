"""The process that `twostroke.exporting` starts: one order on stdin, answers on stdout."""

from __future__ import annotations

import _thread
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType
from typing import BinaryIO, NoReturn

from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import Progress
from twostroke.errors import TwostrokeError
from twostroke.exporting import Answer, Failure, Order, Record

_STOPPED = 128 + signal.SIGTERM  # the exit code


class _Stopped(BaseException):
    """Raised in the main thread when nobody wants the export any more; no `Exception`."""


class _Answers(logging.Handler):
    """Sends answers to the parent, and every log record as one of them."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__()
        self._out = out
        self._writing = threading.RLock()

    def send(self, answer: Answer) -> None:
        """Writes one answer; threads may log, so only one writes at a time."""
        with self._writing:
            pickle.dump(answer, self._out)
            self._out.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record."""
        with suppress(OSError):  # the parent is gone, and the watch on stdin ends this process
            self.send(Record(record.name, record.levelno, record.getMessage()))


def main() -> int:
    """Exports as ordered; answers the exit code."""
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    answers = _Answers(_claim_stdout())
    try:
        order: Order = pickle.load(sys.stdin.buffer)
        logging.basicConfig(handlers=[answers], level=order.log_level)
        threading.Thread(target=_watch_parent, name="twostroke-parent", daemon=True).start()
        answer = _export(order, answers)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent closes stdin when it has this
        answers.send(answer)
    except (_Stopped, BrokenPipeError):
        return _STOPPED
    return 0


def _export(order: Order, answers: _Answers) -> Answer:
    def report(progress: Progress) -> None:
        answers.send(progress)

    try:
        exporter = load_plugins(order.blocked).exporters[order.exporter]
        return exporter.export(order.options, report)
    except TwostrokeError as error:
        return Failure(type(error).__name__, str(error), "")
    except Exception as error:  # told by the parent, which shows it
        return Failure(type(error).__name__, str(error), traceback.format_exc())


def _claim_stdout() -> BinaryIO:
    """A stream of the answers alone: what libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _watch_parent() -> None:
    """Stops the export when stdin ends, which is when the parent closes it or is gone."""
    while os.read(0, 1):  # not through `sys.stdin`, whose lock would be missed at exit
        pass
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
    else:  # wakes the main thread where it sleeps, too
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main())
