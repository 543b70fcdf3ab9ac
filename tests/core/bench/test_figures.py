"""Percentiles, rates and reports of samples whose moments are known."""

import json
import math

import numpy as np
import pytest

from twostroke.bench.figures import figures_of, percentile
from twostroke.bench.report import as_json, lines_of, result_of
from twostroke.bench.sample import Sample

ONE = Sample(10.0, 12.0, (10.5, 11.0, 12.0), num_prompt_tokens=7, num_tokens=3)
TWO = Sample(11.0, 14.0, (13.0, 14.0), num_prompt_tokens=5, num_tokens=2)
FAILED = Sample(10.0, 99.0, error="503 full")


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("values", [[3.0], [4.0, 1.0], [5.0, 2.0, 9.0, 2.0, 7.5]])
def test_percentiles_are_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_nothing_has_no_percentile():
    assert math.isnan(percentile([], 50))


def test_a_load_is_summed_up():
    figures = figures_of([ONE, TWO, FAILED])
    assert (figures.num_requests, figures.num_errors, figures.first_error) == (3, 1, "503 full")
    assert figures.duration_s == 4.0
    assert (figures.num_prompt_tokens, figures.num_tokens) == (12, 5)
    assert figures.tokens_per_s == 5 / 4
    assert figures.requests_per_s == 2 / 4
    assert figures.ttft.p50 == pytest.approx((500 + 2000) / 2)
    assert figures.ttft.most == 2000
    assert figures.between_tokens.p50 == 1000  # of 0.5, 1 and 1 seconds
    assert figures.latency.p50 == 2500


def test_pauses_between_rounds_do_not_count():
    later = Sample(100.0, 101.0, (100.5,), num_tokens=3)
    figures = figures_of([ONE], [later])
    assert figures.duration_s == 3.0
    assert figures.tokens_per_s == 2.0


def test_a_load_that_failed_altogether_has_no_figures():
    figures = figures_of([FAILED])
    assert figures.num_errors == 1
    assert math.isnan(figures.tokens_per_s)
    assert math.isnan(figures.ttft.p50)


def test_a_report_puts_endpoints_side_by_side():
    results = [
        result_of("1 stream", "a", figures_of([ONE])),
        result_of("1 stream", "b", figures_of([TWO, FAILED])),
    ]
    lines = list(lines_of(results))
    assert lines[0].split() == ["1", "stream", "a", "b", "b", "/", "a"]
    (ttft,) = [line for line in lines if line.startswith("  TTFT p50")]
    assert ttft.split()[3:] == ["500", "2,000", "4.00"]
    assert "  first error of b: 503 full" in lines


def test_json_has_null_for_what_was_not_measured():
    result = result_of("1 stream", "a", figures_of([FAILED]))
    text = json.dumps(as_json("mix", {"seed": 0}, [result]), allow_nan=False)
    (found,) = json.loads(text)["results"]
    assert found["values"]["TTFT p50 ms"] is None
    assert found["values"]["errors"] == 1
