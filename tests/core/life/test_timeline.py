"""What a timeline makes of the moments it is told, in numbers that a fake clock fixes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from twostroke.life import Timeline
from twostroke.life.timeline import ChunkTime
from twostroke.timings import (
    ChunkSpan,
    DecodeTimings,
    PrefillTimings,
    Preparation,
    Roofline,
    StepSpan,
    StrokeRoofline,
    Timings,
)


def test_nothing_reached_is_nothing_told():
    assert Timeline(arrived_at=1.0, submitted_at=1.5).timings() == Timings()
    assert Timings().report() == {}


def a_whole_cycle() -> Timeline:
    prepared = Preparation(template_ms=62.5, tokenise_ms=125.0, constraint_ms=31.25)
    timeline = Timeline(arrived_at=10.0, submitted_at=10.25, prepared=prepared)
    timeline.note_cached(5)
    for start, num_tokens, began, ended in ((5, 16, 11.0, 11.5), (21, 4, 12.75, 13.0)):
        timeline.start_prefill(began)
        timeline.add_chunk(ChunkTime(start, num_tokens, began, ended))
    timeline.end_prefill(13.0)
    for moment, batch_size in ((13.5, 0), (14.0, 1), (15.5, 3)):
        if batch_size:
            timeline.add_step(batch_size, busy_s=0.25, past_tokens=25, batch_tokens=25 * batch_size)
        timeline.add_token(moment)
    timeline.add_drafts(4, 3)
    timeline.end(16.0)
    return timeline


def test_each_stage_is_measured_between_its_own_moments():
    timings = a_whole_cycle().timings()
    assert timings == Timings(
        template_ms=62.5,
        tokenise_ms=125.0,
        constraint_ms=31.25,
        queued_ms=750.0,
        prefill_ms=2000.0,
        other_ms=531.25,
        ttft_ms=3500.0,
        decode_ms=2000.0,
        decode_tokens_per_s=1.0,
        total_ms=6000.0,
        prefill=PrefillTimings(
            num_cached_tokens=5,
            num_computed_tokens=20,
            num_chunks=2,
            busy_ms=750.0,
            tokens_per_s=10.0,
            chunks=(ChunkSpan(5, 16, 1, 1000.0, 500.0), ChunkSpan(21, 4, 1, 2750.0, 250.0)),
        ),
        decode=DecodeTimings(
            num_steps=2,
            busy_ms=500.0,
            batch_size_mean=2.0,
            batch_size_max=3,
            inter_token_p50_ms=pytest.approx(500.0, rel=0.01),
            inter_token_max_ms=1500.0,
            num_drafted_tokens=4,
            num_accepted_tokens=3,
            steps=(StepSpan(1, 250.0, 1.0), StepSpan(1, 250.0, 3.0)),
        ),
    )


def test_the_time_to_the_first_token_is_the_sum_of_what_stands_before_it():
    stages = a_whole_cycle().timings().stages_ms()
    names = list(stages)
    before = names[: names.index("ttft_ms")]
    assert sum(stages[name] for name in before) == stages["ttft_ms"]
    assert before == [
        "template_ms",
        "tokenise_ms",
        "constraint_ms",
        "queued_ms",
        "prefill_ms",
        "other_ms",
    ]


def test_a_report_holds_what_is_known_and_nothing_else():
    report = a_whole_cycle().timings().report()
    assert "roofline" not in report
    assert "blocked_ms" not in report
    assert report["prefill"]["chunks"][1] == {
        "start": 21,
        "num_tokens": 4,
        "num_chunks": 1,
        "began_ms": 2750.0,
        "busy_ms": 250.0,
    }
    json.dumps(report, allow_nan=False)


def test_one_token_has_no_rate():
    timeline = Timeline(arrived_at=0.0, submitted_at=0.0)
    timeline.add_token(1.0)
    assert timeline.timings().decode_ms == 0.0
    assert timeline.timings().decode_tokens_per_s is None
    assert timeline.timings().decode is None


def test_a_prompt_that_was_cached_wholly_says_so():
    timeline = Timeline(arrived_at=0.0, submitted_at=0.0)
    timeline.note_cached(40)
    prefill = timeline.timings().prefill
    assert prefill is not None
    assert (prefill.num_cached_tokens, prefill.num_computed_tokens) == (40, 0)


def test_a_long_answer_takes_no_more_room_than_a_short_one():
    timeline = Timeline(arrived_at=0.0, submitted_at=0.0)
    for index in range(100_000):
        timeline.add_step(1 + index % 8, busy_s=0.5, past_tokens=index, batch_tokens=index)
        timeline.add_token(float(index))
    report = timeline.timings().report()
    assert len(json.dumps(report)) < 2_000
    steps = report["decode"]["steps"]
    assert len(steps) <= 16
    assert sum(span["num_steps"] for span in steps) == 100_000
    assert report["decode"]["busy_ms"] == 50_000_000.0
    assert report["decode"]["inter_token_p50_ms"] == 1000.0


def test_the_documentation_explains_every_field():
    text = Path(__file__).parents[3].joinpath("docs", "timeline.md").read_text(encoding="utf-8")
    kinds = (Timings, PrefillTimings, ChunkSpan, DecodeTimings, StepSpan, Roofline, StrokeRoofline)
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert [name for name in sorted(names) if name not in text] == []
