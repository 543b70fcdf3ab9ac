"""What the engine tells of its work while it works: each run of a graph, each end of a sequence.

Whoever plans by measured times, or counts, listens here, so that all of them see the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from twostroke.types import FinishReason, Stroke, Timings


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run of a graph.

    `num_new_tokens` and `num_past_tokens` are those of all its rows together: tokens that were
    computed, and tokens of the KV cache that they attended to. The moments are in seconds of the
    engine's clock. Of the new tokens, `num_drafted_tokens` were guessed: a run of the stroke decode
    that has any verified them, for one sequence.
    """

    stroke: Stroke
    num_rows: int
    num_new_tokens: int
    num_past_tokens: int
    started_at: float
    ended_at: float
    num_drafted_tokens: int = 0

    @property
    def duration_s(self) -> float:
        """How long the run took."""
        return self.ended_at - self.started_at


@dataclass(frozen=True, slots=True)
class End:
    """One sequence that ended. `outcome` is finished, aborted or failed; of these only the first
    two have a reason.
    """

    outcome: str
    reason: FinishReason | None
    num_prompt_tokens: int
    num_completion_tokens: int
    timings: Timings


class Observer(Protocol):
    """Listens to an engine, in its thread: between two steps, so it must be quick."""

    def ran(self, facts: RunFacts) -> None:
        """A graph has run."""
        ...

    def told(self, gap_s: float) -> None:
        """A sequence got a token, `gap_s` after its previous one; not called for its first."""
        ...

    def ended(self, end: End) -> None:
        """A sequence has ended; told before its listener gets the terminal event."""
        ...


class Observers:
    """Tells everybody who was added, in order. Add before the engine starts."""

    def __init__(self, listeners: Iterable[Observer] = ()) -> None:
        self._listeners = list(listeners)

    def add(self, observer: Observer) -> None:
        """From now on `observer` is told too."""
        self._listeners.append(observer)

    def ran(self, facts: RunFacts) -> None:
        """Tells of a run."""
        for listener in self._listeners:
            listener.ran(facts)

    def told(self, gap_s: float) -> None:
        """Tells of a token."""
        for listener in self._listeners:
            listener.told(gap_s)

    def ended(self, end: End) -> None:
        """Tells of an end."""
        for listener in self._listeners:
            listener.ended(end)
