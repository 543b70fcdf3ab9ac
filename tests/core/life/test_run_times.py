from __future__ import annotations

import pytest

from twostroke.life.run_times import BUDGET_S, time_runs


def timed(durations):
    """Times of runs that take so long, after one that takes a minute."""
    now, left = 0.0, [60.0, *durations]

    def run():
        nonlocal now
        now += left.pop(0)

    return time_runs(run, lambda: now), left


def test_the_first_run_does_not_count_and_the_budget_ends_it():
    found, left = timed([0.2, 0.1, 0.15, 0.12, 9.0])
    assert found.fastest_s == pytest.approx(0.1)
    assert found.median_s == pytest.approx(0.135)
    assert len(left) == 1
    assert sum([0.2, 0.1, 0.15]) < BUDGET_S


def test_long_runs_are_three():
    found, left = timed([2.0, 1.0, 3.0, 1.0])
    assert (found.fastest_s, found.median_s, left) == (1.0, 2.0, [1.0])


@pytest.mark.parametrize(
    ("durations", "is_steady"),
    [([1.0, 1.1, 1.2], True), ([1.0, 1.0, 9.0], True), ([1.0, 1.3, 1.3], False)],
)
def test_runs_that_differ_say_that_something_else_ran(durations, is_steady):
    assert timed(durations)[0].is_steady == is_steady
