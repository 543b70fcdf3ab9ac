from __future__ import annotations

import pytest

from twostroke.life.metrics import EngineMetrics, Tally
from twostroke.life.observe import End, RunFacts
from twostroke.types import FinishReason, Stroke, Timings


def test_a_tally_counts_by_buckets_a_bound_belonging_to_the_one_below():
    tally = Tally((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        tally.add(value)
    assert tally.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 6.0)]
    assert (tally.count, tally.sum) == (6, 107.5)


def test_runs_count_by_stroke():
    metrics = EngineMetrics()
    metrics.ran(RunFacts(Stroke.PREFILL, 1, 100, 0, 1.0, 1.25))
    metrics.ran(RunFacts(Stroke.DECODE, 3, 3, 90, 2.0, 2.125))
    assert metrics.run_seconds[Stroke.PREFILL].sum == 0.25
    assert metrics.run_seconds[Stroke.DECODE].sum == 0.125
    assert metrics.run_tokens[Stroke.PREFILL].sum == 100
    assert (metrics.batch_rows.count, metrics.batch_rows.sum) == (1, 3)


def test_an_end_counts_its_stages_in_seconds():
    metrics = EngineMetrics()
    timings = Timings(
        queued_ms=10, tokenise_ms=20, prefill_ms=30, ttft_ms=100, decode_ms=500,
        decode_tokens_per_s=10,
    )  # fmt: skip
    metrics.ended(End("finished", FinishReason.STOP, 7, 6, timings))
    assert metrics.num_ended == {"stop": 1}
    seconds = {
        name: getattr(metrics, name).sum
        for name in ("queue", "tokenise", "prefill", "ttft", "decode", "latency")
    }
    assert seconds == pytest.approx(
        {"queue": 0.01, "tokenise": 0.02, "prefill": 0.03, "ttft": 0.1, "decode": 0.5}
        | {"latency": 0.6}
    )
    assert metrics.per_output_token.sum == pytest.approx(0.1)  # five gaps between six tokens
    assert (metrics.prompt_tokens.sum, metrics.generation_tokens.sum) == (7, 6)


def test_a_fault_counts_by_its_end_alone():
    metrics = EngineMetrics()
    metrics.ended(End("failed", None, 7, 6, Timings(ttft_ms=1)))
    assert metrics.num_ended == {"error": 1}
    assert metrics.ttft.count == metrics.prompt_tokens.count == 0
