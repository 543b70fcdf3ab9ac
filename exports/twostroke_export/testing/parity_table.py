"""What a parity run tells: a table for the terminal and one for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke_export.testing.parity_checks import (
    CHECKS,
    CHUNKS,
    NUM_PROMPT_TOKENS,
    NUM_STEPS,
    RAGGED_LENGTHS,
    TOLERANCE,
    Outcome,
)

_INTRODUCTION = f"""# Supported architectures

Made by `make parity PYTEST_ARGS=--write-docs`; do not edit by hand.

The exporter has no code for single architectures. Each row below is a tiny random model made from
transformers' own config, exported in fp32 through the public pipeline and compared with eager
transformers in fp32: a prefill of {NUM_PROMPT_TOKENS} tokens, {NUM_STEPS} greedy decode steps,
the same prefill in {len(CHUNKS)} chunks, and a ragged batch of {len(RAGGED_LENGTHS)} rows. An
architecture *matches* where the most likely token is the same everywhere and every logit differs by
less than {TOLERANCE:g}; the figures are the largest differences. One that is *refused* is not
exported, and the sentence below the table says so. Models with long rope (phi3) have two sets of
rotary factors: an export holds the short ones or, where `--context` asks for more than the original
length, the long ones at every position, as the model itself takes them for long sequences. An
architecture that is not listed may well work: each export is compared with its source before it is
written.
"""


def count_line(outcomes: Sequence[Outcome]) -> str:
    """The line that a run ends with."""
    return f"parity: {sum(o.is_match for o in outcomes)} of {len(outcomes)} architectures"


def terminal_table(outcomes: Sequence[Outcome]) -> str:
    """Aligned columns, one line an architecture, then the sentences of those that were refused."""
    rows = [_header(), *map(_cells, outcomes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"{name}: {reason}" for name, reason in _reasons(outcomes))])


def markdown_page(outcomes: Sequence[Outcome]) -> str:
    """The page docs/architectures.md."""
    rows = [_header(), ["---"] * len(_header()), *map(_cells, outcomes)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    reasons = "\n".join(f"- **{name}**: {reason}" for name, reason in _reasons(outcomes))
    return "\n".join([_INTRODUCTION, table, "", reasons, "", f"`{count_line(outcomes)}`", ""])


def read_results(page: str) -> dict[str, str]:
    """The names of a page's table with their results, in order."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[1].strip() for row in rows[2:]}


def _reasons(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    given = ((o.name, o.failure or o.refusal) for o in outcomes)
    return [(name, reason) for name, reason in given if reason]


def _header() -> list[str]:
    return ["architecture", "result", *CHECKS, "note"]


def _cells(outcome: Outcome) -> list[str]:
    figures = [outcome.differences.get(check) for check in CHECKS]
    told = [f"{figure:.1e}" if figure is not None else "-" for figure in figures]
    note = outcome.note
    if outcome.num_argmax_different:
        note = f"{outcome.num_argmax_different} most likely tokens differ"
    return [outcome.name, outcome.result, *told, note]
