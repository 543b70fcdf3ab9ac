"""Collects what the parity tests measured; prints the table and ends with the count."""

from __future__ import annotations

from pathlib import Path

import pytest

ARCHITECTURES_PAGE = Path(__file__).parents[3] / "docs" / "architectures.md"
OUTCOMES: pytest.StashKey[list] = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption(
        "--write-docs", action="store_true", help="write docs/architectures.md from a full run"
    )


def pytest_configure(config):
    config.stash[OUTCOMES] = []


@pytest.fixture
def outcomes(request) -> list:
    """What was measured so far; each parity test adds its own."""
    return request.config.stash[OUTCOMES]


@pytest.fixture
def architectures_page() -> Path:
    return ARCHITECTURES_PAGE


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash[OUTCOMES]
    if not outcomes:
        return
    from twostroke_export.testing.architectures import ARCHITECTURES
    from twostroke_export.testing.parity_table import markdown_page, terminal_table

    terminalreporter.section("parity with eager transformers")
    terminalreporter.write_line(terminal_table(outcomes))
    if config.getoption("--write-docs", default=False):
        if [o.name for o in outcomes] != [a.name for a in ARCHITECTURES]:
            raise pytest.UsageError("--write-docs needs a run of every architecture")
        ARCHITECTURES_PAGE.write_text(markdown_page(outcomes), encoding="utf-8")


def pytest_unconfigure(config):
    outcomes = config.stash.get(OUTCOMES, [])
    if outcomes:
        from twostroke_export.testing.parity_table import count_line

        print(count_line(outcomes))  # behind pytest's own summary
