"""The report card: what each check found, and the verdict, as text and as JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Figures = Mapping[str, float]


class Outcome(enum.StrEnum):
    """How a check ended. A skipped one gives its reason: it proved nothing."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Verdict(enum.StrEnum):
    """What all checks together say."""

    PASSES = "passes"
    FAILS = "fails"
    ABSENT = "absent"  # nothing could be tried, mostly for want of a device


@dataclass(frozen=True, slots=True)
class Result:
    """One row. `reason` says why it failed or was skipped; `figures` are what was measured."""

    check: str
    outcome: Outcome
    reason: str = ""
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Card:
    """The results of all checks of one backend. `absence` is the probe's reason for no device."""

    backend: str
    device: str
    options: Mapping[str, Any]
    results: tuple[Result, ...]
    absence: str = ""

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(r.check for r in self.results if r.outcome is Outcome.FAILED)

    @property
    def verdict(self) -> Verdict:
        """A failed check decides; without one, whether there was a device and anything passed."""
        if self.failed:
            return Verdict.FAILS
        has_passed = any(r.outcome is Outcome.PASSED for r in self.results)
        return Verdict.PASSES if has_passed and not self.absence else Verdict.ABSENT

    def sentence(self) -> str:
        """The verdict in words."""
        if self.absence and not self.failed:
            return f"{self.backend}: not here: {self.absence}"
        if self.verdict is Verdict.ABSENT:
            return f"{self.backend}: nothing was proved, every check was skipped"
        counts = [
            (sum(r.outcome is outcome for r in self.results), outcome.value) for outcome in Outcome
        ]
        told = ", ".join(f"{count} {what}" for count, what in counts if count)
        return f"{self.backend}: {self.verdict.value} ({told})"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "backend": self.backend,
            "device": self.device,
            "options": dict(self.options),
            "verdict": self.verdict.value,
            "absence": self.absence,
            "results": [
                {
                    "check": r.check,
                    "outcome": r.outcome.value,
                    "reason": r.reason,
                    "figures": dict(r.figures),
                }
                for r in self.results
            ],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Card:
        """The card that `to_json` answered."""
        results = tuple(
            Result(r["check"], Outcome(r["outcome"]), r["reason"], r["figures"])
            for r in told["results"]
        )
        return cls(told["backend"], told["device"], told["options"], results, told["absence"])

    def to_text(self) -> str:
        """A table with a row for each check, and the verdict in the last line.

        Where there is no device, what was skipped for that is left out: the last line says it.
        """
        rows = [r for r in self.results if not self.absence or r.reason != self.absence]
        return "\n".join([self.heading(), *map(row, rows), self.sentence()])

    def heading(self) -> str:
        """Backend, device and options."""
        given = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.backend} on {self.device or 'no device'}{f' ({given})' if given else ''}"


def row(result: Result) -> str:
    """A row of the table: check, outcome, and the reason or the figures."""
    told = result.reason or _figures(result.figures)
    return f"  {result.check:16} {result.outcome:8} {told}".rstrip()


def _figures(figures: Figures) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}"


def closing_line(cards: Sequence[Card]) -> str:
    """`conformance: N of M backends`; those without a device here do not count."""
    tried = [card for card in cards if card.verdict is not Verdict.ABSENT]
    num_passed = sum(card.verdict is Verdict.PASSES for card in tried)
    return f"conformance: {num_passed} of {len(tried)} backends"
