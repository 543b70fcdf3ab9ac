"""Collects what the parity tests measured; prints the table and ends with the count."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

ARCHITECTURES_PAGE = Path(__file__).parents[3] / "docs" / "architectures.md"
OUTCOMES: pytest.StashKey[list] = pytest.StashKey()
_PROPERTY = "outcome"  # how a parallel worker's reports carry it to the process that prints


def pytest_addoption(parser):
    parser.addoption(
        "--write-docs", action="store_true", help="write docs/architectures.md from a full run"
    )


def pytest_configure(config):
    config.stash[OUTCOMES] = []
    if not hasattr(config, "workerinput"):  # a parallel worker reports to the process that prints
        config.pluginmanager.register(_Collector(config.stash[OUTCOMES]))


class _Collector:
    """Takes the outcomes from the reports of the tests, wherever they ran."""

    def __init__(self, outcomes: list) -> None:
        self.outcomes = outcomes

    def pytest_runtest_logreport(self, report):
        told = [value for name, value in report.user_properties if name == _PROPERTY]
        if report.when == "teardown" and told:  # the last report of a test that ran
            from twostroke_export.testing.parity_checks import Outcome

            self.outcomes += (Outcome(**value) for value in told)


@pytest.fixture
def tell_outcome(request):
    """Tells the run what was measured of one architecture."""
    return lambda outcome: request.node.user_properties.append((_PROPERTY, asdict(outcome)))


@pytest.fixture
def architectures_page() -> Path:
    return ARCHITECTURES_PAGE


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash[OUTCOMES]
    if not outcomes:
        return
    from twostroke_export.testing.architectures import ARCHITECTURES
    from twostroke_export.testing.parity_table import markdown_page, terminal_table

    order = [architecture.name for architecture in ARCHITECTURES]
    outcomes.sort(key=lambda outcome: order.index(outcome.name))
    terminalreporter.section("parity with eager transformers")
    terminalreporter.write_line(terminal_table(outcomes))
    if config.getoption("--write-docs", default=False):
        if [outcome.name for outcome in outcomes] != order:
            raise pytest.UsageError("--write-docs needs a run of every architecture")
        ARCHITECTURES_PAGE.write_text(markdown_page(outcomes), encoding="utf-8")


def pytest_unconfigure(config):
    outcomes = config.stash.get(OUTCOMES, [])
    if outcomes:
        from twostroke_export.testing.parity_table import count_line

        print(count_line(outcomes))  # behind pytest's own summary
