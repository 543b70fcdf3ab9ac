from __future__ import annotations

from twostroke.life import Timeline
from twostroke.types import Timings


def test_nothing_reached_is_nothing_told():
    assert Timeline(arrived_at=1.0, submitted_at=1.5).timings() == Timings()


def test_each_stage_is_measured_between_its_own_moments():
    timeline = Timeline(arrived_at=10.0, submitted_at=10.25, tokenise_ms=200.0)
    timeline.start_prefill(11.0)
    timeline.start_prefill(12.0)  # a second chunk
    timeline.end_prefill(13.0)
    for moment in (13.5, 14.0, 15.5):
        timeline.add_token(moment)
    assert timeline.timings() == Timings(
        queued_ms=750.0,
        tokenise_ms=200.0,
        prefill_ms=2000.0,
        ttft_ms=3500.0,
        decode_ms=2000.0,
        decode_tokens_per_s=1.0,
    )


def test_one_token_has_no_rate():
    timeline = Timeline(arrived_at=0.0, submitted_at=0.0)
    timeline.add_token(1.0)
    assert timeline.timings().decode_ms == 0.0
    assert timeline.timings().decode_tokens_per_s is None
