"""What a load asks, and when."""

import itertools
import statistics

import pytest

from twostroke.bench.asks import fixed_asks, mixed_asks, poisson_arrivals


def take(asks, count):
    return list(itertools.islice(asks, count))


def words(ask):
    return len(ask.prompt.split())


def test_the_mix_has_the_means_that_the_module_names():
    asks = take(mixed_asks(0), 20_000)
    prompts, answers = [words(ask) for ask in asks], [ask.num_answer_tokens for ask in asks]
    assert statistics.fmean(prompts) == pytest.approx(156, rel=0.03)
    assert statistics.fmean(answers) == pytest.approx(302, rel=0.03)
    assert statistics.median(prompts) == pytest.approx(161 * 2.718**-0.5, rel=0.05)
    for lengths in (prompts, answers):
        assert min(lengths) >= 4
        assert max(lengths) == 1024


def test_a_seed_gives_the_same_asks():
    assert take(mixed_asks(3), 50) == take(mixed_asks(3), 50)
    assert take(mixed_asks(3), 50) != take(mixed_asks(4), 50)


def test_fixed_asks_differ_in_text_only():
    asks = take(fixed_asks(50, 128, 0), 100)
    assert {(words(ask), ask.num_answer_tokens) for ask in asks} == {(50, 128)}
    assert len({ask.prompt[:30] for ask in asks}) == 100, "no cache has seen one before"


def test_arrivals_are_a_poisson_process():
    arrivals = poisson_arrivals(5.0, 20_000, seed=1)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *arrivals])]
    assert min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.03)  # as of an exponential
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(2.718**-1, rel=0.03)
    assert arrivals == poisson_arrivals(5.0, 20_000, seed=1)
