"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_memory_back() -> None:
    """Has the C library return what was freed; takes up to 30 ms, without the GIL.

    glibc keeps most of what a large parse or a session being made took, for reuse. Others do as
    they please.
    """
    with suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
