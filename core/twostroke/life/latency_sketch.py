"""The distribution of latencies in little memory, whatever their number.

Durations are counted in buckets whose bounds grow by a fixed factor, so that every quantile is
within one per cent of the true one: DDSketch (Masson, Rim and Lee, VLDB 2019). From a microsecond
to three hours there are 1,160 buckets; only those that occur take memory.
"""

from __future__ import annotations

import math

_ACCURACY = 0.01
_GROWTH = (1 + _ACCURACY) / (1 - _ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)
_SHORTEST_S = 1e-6  # shorter ones count as this


class LatencySketch:
    """Counts durations, in seconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._num_added = 0
        self._least_s = math.inf
        self.max_s: float | None = None

    def __len__(self) -> int:
        return self._num_added

    def add(self, duration_s: float) -> None:
        """Counts one. Mutates self."""
        bucket = math.ceil(math.log(max(duration_s, _SHORTEST_S)) / _LOG_GROWTH)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._num_added += 1
        self._least_s = min(self._least_s, duration_s)
        self.max_s = duration_s if self.max_s is None else max(self.max_s, duration_s)

    def quantile_s(self, share: float) -> float | None:
        """The duration that `share` (0 to 1) of all do not exceed; None where there is none."""
        if self.max_s is None:
            return None
        rank, seen = share * (self._num_added - 1), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen > rank:
                middle_s = 2 * _GROWTH**bucket / (_GROWTH + 1)
                return min(max(middle_s, self._least_s), self.max_s)
        return self.max_s
