"""Runs an export in a process of its own, so that torch never enters the one that serves.

The child gets its order on stdin and answers on stdout, both pickled. It ends when its stdin does:
a parent that is killed takes it along, and a parent that wants to stop closes the pipe.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from twostroke import errors
from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import ExporterSpec, ExportOptions, Progress
from twostroke.errors import ExportError, TwostrokeError

log = logging.getLogger(__name__)

_POLL_S = 0.2  # how long a signal or a stop may wait to be noticed
_STOP_TIMEOUT_S = 10.0  # for the child's clean-up


@dataclass(frozen=True, slots=True)
class Order:
    """What the child is to do: which exporter, without which plugins, and what is logged."""

    exporter: str
    blocked: tuple[str, ...]
    log_level: int
    options: ExportOptions


@dataclass(frozen=True, slots=True)
class Record:
    """A log record of the child."""

    logger: str
    level: int
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """How the export failed: the error's class, what it says, and where it happened."""

    kind: str
    message: str
    trace: str


Answer = Progress | Record | Failure | Path  # the path of the bundle comes last


def run_export(
    spec: ExporterSpec,
    plugins: Plugins,
    options: ExportOptions,
    progress: Callable[[Progress], None],
) -> Path:
    """Exports in a child process; in this one where the child could not find the exporter again.

    That is so for exporters handed over as objects, and in frozen programs. Whatever ends the
    call early (Ctrl-C, a signal, an exception from `progress`) ends the child, whose clean-up runs.

    Raises:
        TwostrokeError: what the exporter raised, or ExportError for an unexpected end.
    """
    if not _is_installed(spec, plugins) or getattr(sys, "frozen", False) or not sys.executable:
        return spec.export(options, progress)
    blocked = tuple(
        f"{record.distribution}:{record.name}"
        for record in plugins.records
        if record.status == "blocked"
    )
    order = Order(spec.name, blocked, logging.getLogger().getEffectiveLevel(), options)
    with _child(order) as (process, answers):
        while True:
            try:
                answer = answers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(answer, Path):
                return answer
            if isinstance(answer, Progress):
                progress(answer)
            elif isinstance(answer, Record):
                logging.getLogger(answer.logger).log(answer.level, "%s", answer.message)
            else:
                raise _error(options, answer, process)


def _is_installed(spec: ExporterSpec, plugins: Plugins) -> bool:
    return any(
        spec.name in record.exporters and record.version
        for record in plugins.records
        if record.status == "loaded"
    )


@contextmanager
def _child(order: Order) -> Iterator[tuple[subprocess.Popen[bytes], queue.Queue[Answer | None]]]:
    """The running child and what it says, ending with None; stopped when the block ends."""
    paths = [path or str(Path.cwd()) for path in sys.path]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "twostroke.export_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: queue.Queue[Answer | None] = queue.Queue()
    listener = threading.Thread(
        target=_listen, args=(process.stdout, answers), name="twostroke-export", daemon=True
    )
    try:
        listener.start()
        with suppress(OSError):  # a child that is gone already says so by its exit code
            pickle.dump(order, process.stdin)
            process.stdin.flush()
        yield process, answers
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        process.stdout.close()


def _listen(stream: BinaryIO, answers: queue.Queue[Answer | None]) -> None:
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            answers.put(pickle.load(stream))
    answers.put(None)


def _error(
    options: ExportOptions, failure: Failure | None, process: subprocess.Popen[bytes]
) -> TwostrokeError:
    if failure is None:
        code = process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        advice = "; is there enough memory?" if code == -9 else ""
        return ExportError(f"The process that exported {options.source} {how}{advice}")
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, TwostrokeError):
        error: TwostrokeError = kind(failure.message)
        return error
    log.debug("the export failed:\n%s", failure.trace)
    return ExportError(
        f"The export of {options.source} failed unexpectedly: {failure.kind}: {failure.message}. "
        f"The log at level debug has the whole story."
    )
