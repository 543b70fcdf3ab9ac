"""The decode steps that one sequence took part in, summed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twostroke.life.bounded_series import BoundedSeries
from twostroke.timings import StepSpan


class _Steps(NamedTuple):
    num_steps: int
    busy_s: float
    num_rows: int  # of all steps together


class DecodeSteps:
    """What the steps took and read, without keeping each.

    `own_tokens` and `batch_tokens` sum up, over the steps, the tokens of the KV cache that were
    attended to: those of this sequence, and those of all that shared the step.
    """

    def __init__(self) -> None:
        self._series: BoundedSeries[_Steps] = BoundedSeries(_join)
        self._batch_sizes: dict[int, int] = {}
        self.busy_s = 0.0
        self.own_tokens = 0
        self.batch_tokens = 0

    def __len__(self) -> int:
        return len(self._series)

    @property
    def batch_sizes(self) -> Mapping[int, int]:
        """How many steps were shared by how many sequences."""
        return self._batch_sizes

    def add(self, batch_size: int, busy_s: float, own_tokens: int, batch_tokens: int) -> None:
        """One more step. Mutates self."""
        self._series.add(_Steps(1, busy_s, batch_size))
        self._batch_sizes[batch_size] = self._batch_sizes.get(batch_size, 0) + 1
        self.busy_s += busy_s
        self.own_tokens += own_tokens
        self.batch_tokens += batch_tokens

    def spans(self) -> tuple[StepSpan, ...]:
        """The steps in order, neighbours together where there are many."""
        return tuple(
            StepSpan(each.num_steps, each.busy_s * 1e3, each.num_rows / each.num_steps)
            for each in self._series.entries
        )


def _join(one: _Steps, other: _Steps) -> _Steps:
    return _Steps(
        one.num_steps + other.num_steps, one.busy_s + other.busy_s, one.num_rows + other.num_rows
    )
