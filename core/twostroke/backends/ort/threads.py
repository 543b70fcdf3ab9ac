"""One pool of ONNX Runtime's threads for every session of a process.

Each session has threads of its own otherwise: good for one model, whose two sessions take turns,
while the sessions of two models would take the processor from each other. A process gets its pool
once and for good, so only who owns the process asks for it (`twostroke serve`), never a library.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from twostroke.backends.ort.library import first_line, onnxruntime
from twostroke.errors import BackendError

_sharing = threading.Lock()
_num_shared: int | None = None


@dataclass(frozen=True, slots=True)
class Threads:
    """What the operators of a backend's sessions run in."""

    num_threads: int
    is_shared: bool  # with every session of the process; False: each session has its own


@runtime_checkable
class HasThreads(Protocol):
    """A backend that says what its operators run in; optional."""

    @property
    def threads(self) -> Threads:
        """How many threads, and whose."""
        ...


def share_threads(num_threads: int) -> None:
    """From now on every session that is made in this process runs in one pool of `num_threads`.

    Sessions that were made before keep their own threads. Doing it again with the same number
    changes nothing.

    Raises:
        BackendError: the process has a pool of another size, or one that others have made.
        InstallError: there is no ONNX Runtime.
    """
    global _num_shared
    with _sharing:
        if _num_shared == num_threads:
            return
        try:  # it makes the threads at once, and refuses to make them twice
            onnxruntime().set_global_thread_pool_sizes(num_threads, 1)
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            raise BackendError(
                f"The sessions of this process cannot share {num_threads} threads: "
                f"{first_line(error)} A process has one pool for good; ask for it once, and first."
            ) from error
        _num_shared = num_threads


def num_shared_threads() -> int | None:
    """The size of the process's pool; None where each session has threads of its own."""
    return _num_shared


def join_shared_threads(session_options: Any) -> None:
    """Has a session run in the process's pool where there is one, which ONNX Runtime demands then.

    Mutates `session_options`, which says no number of its own any more.
    """
    if _num_shared is not None:
        session_options.use_per_session_threads = False
        # ONNX Runtime would print, for each session, that it ignores these.
        session_options.intra_op_num_threads = session_options.inter_op_num_threads = 0
