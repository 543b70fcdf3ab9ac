"""Runs native code that may take long or need much stack: bounded in time and in number."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from twostroke.errors import RequestError, UnavailableError
from twostroke.grammar.bounds import STACK_BYTES

T = TypeVar("T")

NUM_THREADS = 4
# A thread cannot be killed: one that never ends keeps its place here, and costs no more.
_places = threading.BoundedSemaphore(NUM_THREADS)
_starting = threading.Lock()


def run_bounded(task: Callable[[], T], *, limit_s: float, param: str) -> T:
    """Runs `task` in a thread of its own and waits for it, at most `limit_s` after it began.

    Raises:
        RequestError: it took longer; `param` names the field at fault. The thread goes on.
        UnavailableError: all threads are busy for `limit_s`, or none can be started.
        Exception: what `task` raises.
    """
    places = _places
    if not places.acquire(timeout=limit_s):
        raise UnavailableError("Too many grammars are being compiled. Try again later.")
    results: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            results.append(task())
        except BaseException as fault:
            faults.append(fault)
        finally:
            places.release()

    try:
        thread = _started(run)
    except RuntimeError as error:  # no memory for its stack, or too many threads
        places.release()
        raise UnavailableError(f"No thread to compile a grammar in: {error}. Try again.") from None
    thread.join(limit_s)
    if faults:
        raise faults[0]
    if not results:
        raise RequestError(
            f"{param} takes more than {limit_s:g} seconds to compile. Make it smaller.",
            param=param,
        )
    return results[0]


def _started(run: Callable[[], None]) -> threading.Thread:
    with _starting:
        before = threading.stack_size(STACK_BYTES)  # of every thread that begins from now on
        try:
            # A daemon, so that one that hangs never keeps a program alive.
            thread = threading.Thread(target=run, name="twostroke-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
