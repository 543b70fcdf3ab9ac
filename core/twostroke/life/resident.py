"""How much memory this process really takes."""

from __future__ import annotations

import functools
import time
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


_FRESH_S = 1.0
_last: tuple[float, int | None] | None = None


def resident_bytes() -> int | None:
    """What `read_resident_bytes` said within the last second: asking more often costs too much."""
    global _last
    now = time.monotonic()
    if _last is None or now - _last[0] > _FRESH_S:
        _last = now, read_resident_bytes()
    return _last[1]


def read_resident_bytes() -> int | None:
    """The proportional set size: pages that are mapped twice, as weights are, count once.

    Linux only (None elsewhere): the resident size that other systems tell counts them twice. Walks
    all pages, which takes some milliseconds a gigabyte.
    """
    try:
        for line in _ROLLUP.read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024  # the file counts in kB
    except (OSError, ValueError, IndexError):
        pass
    return None


@functools.cache
def process_bytes() -> int | None:
    """What the process took when this was first asked: before its first model was loaded."""
    return read_resident_bytes()
