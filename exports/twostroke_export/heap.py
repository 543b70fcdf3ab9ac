"""Gives freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress


def release() -> None:
    """Collects garbage and returns what is free.

    Modules and traces refer to each other in circles; and glibc keeps freed pages of its heap,
    a few hundred megabytes after an export.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library: nothing to give back
            ctypes.CDLL(None).malloc_trim(0)
