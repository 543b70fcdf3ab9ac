"""What runs cost right now, learned from the runs themselves: for whoever decides between them."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.life.observe import End, RunFacts
from twostroke.types import Stroke

_WEIGHT = 0.125  # of a new measurement
_NUM_FIRST = 2  # runs of a length until it is believed: the first also binds memory
_STALE_AFTER_RUNS = 512  # of decode, without a verification of a length

_ROW_SHARE = 0.3
"""What one more row adds to a decode run, of the cost of a run itself.

Measured on a CPU: about 10 ms + 3 ms a row. Used only for batch sizes that have not run yet.
"""

_TOKEN_SHARE = 0.1
"""What one more token adds to a verification, of a decode step: the guess before it is measured."""


@dataclass(slots=True)
class _Measured:
    seconds: float
    num_runs: int = 1
    last_run: int = 0

    def add(self, seconds: float) -> None:
        self.num_runs += 1
        if self.num_runs <= _NUM_FIRST:
            self.seconds = min(self.seconds, seconds)
        else:  # one stalled run says little
            self.seconds += _WEIGHT * (min(seconds, 2 * self.seconds) - self.seconds)


class StepCosts:
    """Listens to an engine (see `Observer`); moving averages of seconds, by the size of a run."""

    def __init__(self) -> None:
        self._decode: dict[int, _Measured] = {}
        self._verify: dict[int, _Measured] = {}
        self._num_runs = 0

    def decode_s(self, num_rows: int) -> float | None:
        """A decode run over so many rows; by the nearest size that ran, None where none did."""
        if not self._decode:
            return None
        near = min(self._decode, key=lambda size: abs(size - num_rows))
        scale = (1 + _ROW_SHARE * (num_rows - 1)) / (1 + _ROW_SHARE * (near - 1))
        return self._decode[near].seconds * scale

    def verify_s(self, num_tokens: int) -> float | None:
        """A run that verifies so many tokens; None before any decode run.

        A hopeful guess where it was not measured, or not for long: the run it invites tells.
        """
        step_s = self.decode_s(1)
        if step_s is None:
            return None
        hoped_s = step_s * (1 + _TOKEN_SHARE * (num_tokens - 1))
        known = self._verify.get(num_tokens)
        if known is None:
            return hoped_s
        is_stale = self._num_runs - known.last_run > _STALE_AFTER_RUNS
        if known.num_runs < _NUM_FIRST or is_stale:
            return min(hoped_s, known.seconds)
        return known.seconds

    def ran(self, facts: RunFacts) -> None:
        """Learns from a run; those of prompts say nothing here."""
        if facts.stroke is not Stroke.DECODE:
            return
        if facts.num_drafted_tokens:
            _add(self._verify, facts.num_new_tokens, facts.duration_s)
            self._verify[facts.num_new_tokens].last_run = self._num_runs
        else:
            self._num_runs += 1
            _add(self._decode, facts.num_rows, facts.duration_s)

    def told(self, gap_s: float) -> None:
        """Costs are of runs, not of tokens."""

    def ended(self, end: End) -> None:
        """Costs are of runs, not of sequences."""


def _add(measured: dict[int, _Measured], size: int, seconds: float) -> None:
    if size in measured:
        measured[size].add(seconds)
    else:
        measured[size] = _Measured(seconds)
