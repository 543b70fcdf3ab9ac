"""What checks are made of: their type, and the words in which they fail or stand aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twostroke.backends.protocol import Array
from twostroke.testing.kit.card import Outcome, Result

if TYPE_CHECKING:
    from twostroke.testing.kit.subject import Subject

DIFFERENCE = "largest relative difference"

TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 2e-2}
"""How far logits may differ as a share of the largest, by the precision of a bundle's weights."""

QUANTISED_TOLERANCE = 5e-2
"""Kernels round activations too, and do so in another way for one row than for several."""


class CheckFailedError(AssertionError):
    """The backend does not do what was checked; the message says what it did."""


class CheckSkippedError(Exception):
    """There is nothing to check; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the card. `run` raises, or answers what it measured."""

    name: str
    about: str
    run: Callable[[Subject], dict[str, float]]

    def result(self, subject: Subject) -> Result:
        """Runs the check; whatever a backend raises is a failure with its words."""
        try:
            figures = self.run(subject)
        except CheckSkippedError as reason:
            return Result(self.name, Outcome.SKIPPED, str(reason))
        except CheckFailedError as fault:
            return Result(self.name, Outcome.FAILED, str(fault))
        except Exception as error:  # a stranger's backend may raise anything
            return Result(self.name, Outcome.FAILED, f"{type(error).__name__}: {error}")
        return Result(self.name, Outcome.PASSED, figures=figures)


def require(condition: Any, fault: str) -> None:
    """Fails the check with `fault` unless the condition holds."""
    if not condition:
        raise CheckFailedError(fault)


def relative_difference(found: Array, expected: Array, what: str) -> float:
    """The largest difference of logits as a share of the largest expected one.

    Raises:
        CheckFailedError: another shape, or numbers that are not finite.
    """
    require(
        found.shape == expected.shape,
        f"{what}: logits of shape {list(found.shape)}, expected {list(expected.shape)}",
    )
    require(np.isfinite(found).all(), f"{what}: logits that are no finite numbers")
    largest = max(float(np.abs(expected).max()), 1e-6)
    return float(np.abs(found.astype(np.float64) - expected).max()) / largest


def require_close(found: Array, expected: Array, tolerance: float, what: str) -> float:
    """The relative difference, where it is within `tolerance`.

    Raises:
        CheckFailedError: it is larger.
    """
    difference = relative_difference(found, expected, what)
    require(
        difference <= tolerance,
        f"{what}: logits differ by {difference:.2g} of the largest, not {tolerance:g} at most",
    )
    return difference
