"""The conformance kit's checks, without pytest: `conform` runs them all and answers a report card.

`twostroke.testing.conformance` makes pytest tests of them; `twostroke conformance` prints the card.
"""

from collections.abc import Callable, Sequence

from twostroke.testing.kit.binding_check import BINDING_CHECKS
from twostroke.testing.kit.bundles import KitBundle
from twostroke.testing.kit.card import Card, Outcome, Result, Verdict, closing_line
from twostroke.testing.kit.checking import Check
from twostroke.testing.kit.device_checks import DEVICE_CHECKS
from twostroke.testing.kit.graph_checks import GRAPH_CHECKS
from twostroke.testing.kit.life_checks import LIFE_CHECKS
from twostroke.testing.kit.memory_check import MEMORY_CHECK
from twostroke.testing.kit.parity_checks import PARITY_CHECKS
from twostroke.testing.kit.subject import Subject

CHECKS: tuple[Check, ...] = (
    *DEVICE_CHECKS,
    *GRAPH_CHECKS,
    *BINDING_CHECKS,
    *PARITY_CHECKS,
    *LIFE_CHECKS,
    MEMORY_CHECK,
)
"""In the order of the card."""


def conform(
    subject: Subject,
    checks: Sequence[Check] = CHECKS,
    heard: Callable[[Result], None] = lambda result: None,
) -> Card:
    """Runs the checks one after another; `heard` is told each result.

    Closes nothing: the subject's owner does.
    """
    results = []
    for check in checks:
        results.append(check.result(subject))
        heard(results[-1])
    return card_of(subject, results)


def card_of(subject: Subject, results: Sequence[Result]) -> Card:
    """The card of results that were found."""
    return Card(
        backend=subject.spec.name,
        device=subject.device_words,
        options=subject.options,
        results=tuple(results),
        absence=subject.absence,
    )


__all__ = [
    "CHECKS",
    "Card",
    "Check",
    "KitBundle",
    "Outcome",
    "Result",
    "Subject",
    "Verdict",
    "card_of",
    "closing_line",
    "conform",
]
