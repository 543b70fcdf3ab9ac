"""How long the same work takes, again and again, and whether something else slowed it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

MIN_RUNS, BUDGET_S = 3, 0.5
STEADY_RATIO = 1.25
"""Alone on a machine half of the runs take hardly longer than the fastest, a few per cent."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The fastest run, and the one in the middle."""

    fastest_s: float
    median_s: float

    @property
    def is_steady(self) -> bool:
        """Whether runs took about as long as each other: nothing else ran meanwhile."""
        return self.median_s <= STEADY_RATIO * self.fastest_s


def time_runs(
    run: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> RunTimes:
    """Runs as often as half a second allows, three times at least; a first run does not count."""
    run()
    times: list[float] = []
    started = before = clock()
    while len(times) < MIN_RUNS or before - started < BUDGET_S:
        run()
        now = clock()
        times.append(now - before)
        before = now
    return RunTimes(min(times), median(times))
