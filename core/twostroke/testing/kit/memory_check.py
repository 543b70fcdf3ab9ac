"""The check that runs leave nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

from twostroke.testing.kit.checking import Check, require
from twostroke.testing.kit.rows import in_each_setup, prompt
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import Subject

NUM_RUNS = 200
_NUM_WINDOWS, _WINDOW_RUNS = 3, 40  # windows are compared; what comes before them warms up
_ALLOWED_BYTES = {"Python's memory": 100, "the process's memory": 20_000}
"""For each run; the system gives memory out in whole pages."""


@in_each_setup
def _memory_flat(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    ids = prompt(runner.vocab_size, 11, 5)

    def run(times: int) -> None:
        for _ in range(times // 2):
            runner.prefill(0, 0, ids, is_last=True)
            runner.decode(0, [1], [len(ids)])

    was_tracing = tracemalloc.is_tracing()
    run(NUM_RUNS // 10)  # whatever is kept once is kept by now
    tracemalloc.start()
    try:
        run(NUM_RUNS // 10)
        readings = []
        for _ in range(_NUM_WINDOWS + 1):
            run(_WINDOW_RUNS)
            readings.append(_memory())
    finally:
        if not was_tracing:
            tracemalloc.stop()
    # A leak grows in every window; what is merely replaced late, or cached, does not.
    grown = [
        min(new - old for old, new in itertools.pairwise(kind))
        for kind in zip(*readings, strict=True)
    ]
    for num_bytes, (what, allowed) in zip(grown, _ALLOWED_BYTES.items(), strict=True):
        require(
            num_bytes <= allowed * _WINDOW_RUNS,
            f"each run keeps {num_bytes // _WINDOW_RUNS:,} bytes of {what}, "
            f"not {allowed:,} at most",
        )
    return {"runs": NUM_RUNS, "bytes kept a run": max(0, *grown) // _WINDOW_RUNS}


def _memory() -> tuple[int, int]:
    """Bytes that Python's allocator and numpy gave out, and those of the process."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0], _resident_bytes()


def _resident_bytes() -> int:
    """What the process holds; its peak where the system tells no more, 0 where it tells nothing."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


MEMORY_CHECK = Check("memory-flat", f"{NUM_RUNS} runs leave nothing behind", _memory_flat)
