"""The documentation's table is current, and a run tells the truth."""

from __future__ import annotations

import dataclasses

import pytest

from twostroke_export.testing.architectures import ARCHITECTURES
from twostroke_export.testing.parity_checks import CHECKS, TOLERANCE, Outcome
from twostroke_export.testing.parity_table import (
    count_line,
    markdown_page,
    read_results,
    terminal_table,
)

MATCH = Outcome("good", differences=dict.fromkeys(CHECKS, TOLERANCE / 10))
FAILED = Outcome("oh", failure="ValueError: it broke")
REFUSED = Outcome("no", refusal="It is refused.")


def test_the_page_lists_every_architecture(architectures_page):
    expected = {a.name: "refused" if a.refusal else "matches" for a in ARCHITECTURES}
    page = architectures_page.read_text(encoding="utf-8")
    assert list(read_results(page).items()) == list(expected.items())
    num_matches = sum(result == "matches" for result in expected.values())
    assert f"`parity: {num_matches} of {len(expected)} architectures`" in page


def test_names_are_unique():
    assert len({a.name for a in ARCHITECTURES}) == len(ARCHITECTURES)


@pytest.mark.parametrize(
    "flaw",
    [
        {"differences": dict.fromkeys(CHECKS, TOLERANCE)},
        {"differences": dict.fromkeys(CHECKS, float("nan"))},
        {"differences": {"prefill": 0.0}},
        {"num_argmax_different": 1},
        {"refusal": "No."},
        {"failure": "ValueError"},
    ],
    ids=["too far", "not a number", "not every check", "another token", "refused", "failed"],
)
def test_only_a_whole_match_counts(flaw):
    assert MATCH.is_match
    flawed = dataclasses.replace(MATCH, **flaw)
    assert not flawed.is_match
    assert count_line([MATCH, flawed]) == "parity: 1 of 2 architectures"


def test_both_tables_tell_why():
    outcomes = [MATCH, FAILED, REFUSED]
    page = markdown_page(outcomes)
    assert read_results(page) == {"good": "matches", "oh": "failed", "no": "refused"}
    assert "- **no**: It is refused." in page
    told = terminal_table(outcomes).splitlines()[-2:]
    assert told == ["oh: ValueError: it broke", "no: It is refused."]
