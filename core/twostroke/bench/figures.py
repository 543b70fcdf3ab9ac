"""Percentiles and rates of what the clients of a load saw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twostroke.bench.sample import Sample


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest, as numpy's default; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles in milliseconds; NaN where nothing was measured."""

    p50: float
    p90: float
    p99: float
    most: float


def spread_ms(seconds: Iterable[float]) -> Spread:
    """The spread of durations given in seconds."""
    values = [value * 1e3 for value in seconds]
    return Spread(
        percentile(values, 50),
        percentile(values, 90),
        percentile(values, 99),
        max(values, default=math.nan),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """One load on one endpoint. Failed requests count as errors and nowhere else."""

    num_requests: int
    num_errors: int
    duration_s: float  # from the first request to the last end, pauses between rounds left out
    num_prompt_tokens: int
    num_tokens: int
    tokens_per_s: float  # of answers, all streams together
    requests_per_s: float
    ttft: Spread
    between_tokens: Spread
    latency: Spread
    first_error: str | None = None


def figures_of(*rounds: Sequence[Sample]) -> Figures:
    """Sums up the samples of a load, which may have run in several rounds with others between."""
    samples = [sample for each in rounds for sample in each]
    good = [sample for sample in samples if sample.error is None]
    errors = [sample.error for sample in samples if sample.error is not None]
    duration_s = sum(map(_duration_s, rounds)) or math.nan
    num_tokens = sum(sample.num_tokens for sample in good)
    return Figures(
        num_requests=len(samples),
        num_errors=len(errors),
        duration_s=duration_s,
        num_prompt_tokens=sum(sample.num_prompt_tokens or 0 for sample in good),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / duration_s,
        requests_per_s=len(good) / duration_s,
        ttft=spread_ms(s.ttft_s for s in good if s.ttft_s is not None),
        between_tokens=spread_ms(gap for s in good for gap in s.gaps_s),
        latency=spread_ms(s.ended_at - s.started_at for s in good),
        first_error=errors[0] if errors else None,
    )


def _duration_s(samples: Sequence[Sample]) -> float:
    good = [sample for sample in samples if sample.error is None]
    if not good:
        return 0.0
    return max(s.ended_at for s in good) - min(s.started_at for s in good)
