"""Memory mapped page by page: it costs what was touched, and can be returned in parts.

On Linux a private mapping's pages go at once (MADV_DONTNEED) and read as zeros afterwards; on macOS
they go when the system needs them (MADV_FREE). Windows has neither. A shared mapping, which is
Python's default, would keep its pages in the page cache.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

from twostroke.backends.protocol import Array

# macOS has MADV_DONTNEED as well, but there it returns nothing.
_ADVICE = getattr(mmap, "MADV_DONTNEED" if sys.platform == "linux" else "MADV_FREE", None)


def map_pages(num_bytes: int) -> mmap.mmap:
    """Zeros that take no memory until they are written.

    Huge pages are declined: one token in a cache row would touch 2 MiB for each head.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, num_bytes)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def give_pages_back(pages: mmap.mmap, array: Array, start: int) -> bool:
    """Returns what lies behind the first `start` positions of the array's axis 2.

    `array`, [rows, kv_heads, capacity, head_dim], lies in `pages`. Whole pages only, so up to a
    page at either end of each head stays. Mutates the array there. False where the system cannot.
    """
    if _ADVICE is None:
        return False
    first = array.ctypes.data - np.frombuffer(pages, np.uint8).ctypes.data
    num_heads = array.shape[0] * array.shape[1]
    head_bytes, token_bytes = array.strides[1], array.strides[2]
    if start == 0:  # the heads lie behind each other
        num_heads, head_bytes = 1, array.nbytes
    for begin in range(first, first + num_heads * head_bytes, head_bytes):
        low = _rounded_up(begin + start * token_bytes)
        high = (begin + head_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if high > low:
            pages.madvise(_ADVICE, low, high - low)
    return True


def _rounded_up(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
