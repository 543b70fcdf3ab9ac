"""What a run found, as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.bench.figures import Figures, Spread


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one endpoint. `values` are named with their units, in the order of a report."""

    load: str  # e.g. `8 streams`
    target: str
    values: Mapping[str, float]
    first_error: str | None = None


def result_of(load: str, target: str, figures: Figures) -> Result:
    """The figures of a load of requests as a line of a report."""
    values = {
        "requests": figures.num_requests,
        "errors": figures.num_errors,
        "prompt tokens": figures.num_prompt_tokens,
        "tokens": figures.num_tokens,
        "tokens/s": figures.tokens_per_s,
        **named("TTFT", figures.ttft),
        **named("between tokens", figures.between_tokens),
        **named("latency", figures.latency),
    }
    return Result(load, target, values, figures.first_error)


def named(name: str, spread: Spread) -> dict[str, float]:
    """The percentiles of a spread under names with units."""
    return {
        f"{name} p50 ms": spread.p50,
        f"{name} p90 ms": spread.p90,
        f"{name} p99 ms": spread.p99,
    }


def lines_of(results: Sequence[Result]) -> Iterator[str]:
    """A block for each load: a line for each value, a column for each endpoint.

    With several endpoints the ratios to the first one follow.
    """
    for load in dict.fromkeys(result.load for result in results):
        columns = [result for result in results if result.load == load]
        labels = [result.target for result in columns]
        labels += [f"{label} / {labels[0]}" for label in labels[1:]]
        widths = [max(len(label), 10) for label in labels]
        yield "  ".join([f"{load:26}", *(f"{t:>{w}}" for t, w in zip(labels, widths, strict=True))])
        for name in columns[0].values:
            found = [result.values.get(name, math.nan) for result in columns]
            cells = [_number(value) for value in found]
            cells += [_ratio(value, found[0]) for value in found[1:]]
            shown = (f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
            yield "  ".join([f"  {name:24}", *shown])
        for result in columns:
            if result.first_error is not None:
                yield f"  first error of {result.target}: {result.first_error}"
        yield ""


def as_json(
    scenario: str, settings: Mapping[str, Any], results: Sequence[Result]
) -> dict[str, Any]:
    """The whole run; what was not measured is null."""
    return {
        "scenario": scenario,
        "settings": dict(settings),
        "results": [
            {
                "load": result.load,
                "target": result.target,
                "values": {
                    name: None if math.isnan(value) else round(value, 3)
                    for name, value in result.values.items()
                },
                "first_error": result.first_error,
            }
            for result in results
        ],
    }


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _ratio(value: float, first: float) -> str:
    return "-" if math.isnan(value) or math.isnan(first) or first == 0 else f"{value / first:.2f}"
