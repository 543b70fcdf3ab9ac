"""What evaluating showed, as a table for a person or JSON for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from twostroke.cli.progress import size

if TYPE_CHECKING:
    from twostroke.evaluation import Evaluated

_HEADER = (
    "bundle",
    "precision",
    "disk",
    "weights",
    "decode ms",
    "perplexity",
    "KL",
    "same token",
)
_NUM_LEFT = 2  # columns of text; figures are set to the right
_ABSENT = "-"


def quality_table(found: Sequence[Evaluated]) -> Iterator[str]:
    """Lines: a header, one for each bundle, and what was measured on."""
    rows = [_HEADER, *(_cells(one) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < _NUM_LEFT else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    figures = found[0].evaluation
    against = ""
    if figures.source is not None and figures.source_perplexity is not None:
        against = f", against {figures.source} (perplexity {figures.source_perplexity:.2f})"
    yield (
        f"{figures.num_tokens} tokens of {figures.text} in windows of {figures.window_tokens}"
        f"{against}, on {figures.backend}"
    )


def as_json(one: Evaluated) -> dict[str, Any]:
    """What `--json` prints for a bundle."""
    manifest = one.bundle.manifest
    return {
        "bundle": str(one.bundle.root),
        "name": manifest.name,
        "precision": manifest.precision,
        "disk_bytes": one.bundle.num_bytes,
        "weights_bytes": one.weights_bytes,
        "decode_ms": None if one.decode_ms is None else round(one.decode_ms, 3),
        **one.evaluation.model_dump(),
    }


def _cells(one: Evaluated) -> tuple[str, ...]:
    figures = one.evaluation
    return (
        one.bundle.root.name,
        one.bundle.manifest.precision,
        size(one.bundle.num_bytes),
        size(one.weights_bytes),
        _ABSENT if one.decode_ms is None else f"{one.decode_ms:.3g}",
        f"{figures.perplexity:.2f}",
        _ABSENT if figures.mean_kl is None else f"{figures.mean_kl:.4f}",
        _ABSENT if figures.top1_agreement is None else f"{figures.top1_agreement:.1%}",
    )
