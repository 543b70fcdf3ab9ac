"""One process at a time: a lock on a file that ends with its holder, however that ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_POLL_S = 0.5

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: BinaryIO) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock on `path` (which stays behind, empty) inside of the block.

    `on_wait` is called every half second while another process holds it; when it raises, the
    wait ends with what it raised.

    Raises:
        OSError: the file cannot be made, or the file system has no locks.
    """
    with path.open("ab") as file:  # closing it, or the end of the process, lets go of the lock
        while not _try_lock(file):
            on_wait()
            time.sleep(_POLL_S)
        yield
