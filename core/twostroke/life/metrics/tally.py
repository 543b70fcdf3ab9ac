"""A histogram that one thread fills and another reads, without a lock.

A library's histogram takes a lock and a dictionary look-up for each value, which a token loop
would feel; this one takes a bisection and two additions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Upper bounds of the buckets, in seconds. A small model on a good processor makes a token in two
# milliseconds, a large one on a poor one in a second: the scale covers both.
SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
TOKENS = tuple(float(2**power) for power in range(18))  # 1 to 131,072
ROWS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)


class Tally:
    """Counts values by buckets. Written by one thread; read by any.

    A reader may see a value in a bucket that the sum lacks yet, and never more than that.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, ascending; one more bucket takes the rest."""
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Counts one value; on a bound it belongs to the bucket below."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Bounds and how many values lie at or below each, as Prometheus wants them."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(list(self._counts))), strict=True))
