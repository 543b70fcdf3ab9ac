"""Counts of one engine's work, from what it tells its observers."""

from __future__ import annotations

from collections import Counter

from twostroke.life.metrics.tally import ROWS, SECONDS, TOKENS, Tally
from twostroke.life.observe import End, RunFacts
from twostroke.types import Stroke


class EngineMetrics:
    """Listens to an engine (see `Observer`): written in its thread, read from any."""

    def __init__(self) -> None:
        self.run_seconds = {stroke: Tally(SECONDS) for stroke in Stroke}
        self.run_tokens = {stroke: Tally(TOKENS) for stroke in Stroke}
        self.batch_rows = Tally(ROWS)  # of decode runs
        self.num_ended: Counter[str] = Counter()  # by finish reason; a fault is `error`
        self.prompt_tokens = Tally(TOKENS)
        self.generation_tokens = Tally(TOKENS)
        self.ttft = Tally(SECONDS)
        self.queue = Tally(SECONDS)
        self.tokenise = Tally(SECONDS)
        self.prefill = Tally(SECONDS)
        self.decode = Tally(SECONDS)
        self.latency = Tally(SECONDS)
        self.per_output_token = Tally(SECONDS)
        self.inter_token = Tally(SECONDS)
        self.hand_over = Tally(SECONDS)
        self.handed_over_bytes = 0

    def ran(self, facts: RunFacts) -> None:
        """Counts a run of a graph."""
        self.run_seconds[facts.stroke].add(facts.duration_s)
        self.run_tokens[facts.stroke].add(facts.num_new_tokens)
        if facts.stroke is Stroke.DECODE and not facts.num_drafted_tokens:
            self.batch_rows.add(facts.num_rows)

    def told(self, gap_s: float) -> None:
        """Counts a token that came `gap_s` after the one before it."""
        self.inter_token.add(gap_s)

    def ended(self, end: End) -> None:
        """Counts a sequence that ended; one that failed counts by its end alone."""
        self.num_ended["error" if end.reason is None else end.reason.value] += 1
        if end.outcome == "failed":
            return
        self.prompt_tokens.add(end.num_prompt_tokens)
        self.generation_tokens.add(end.num_completion_tokens)
        timings = end.timings
        stages_ms = (
            (self.ttft, timings.ttft_ms),
            (self.queue, timings.queued_ms),
            (self.tokenise, timings.tokenise_ms),
            (self.prefill, timings.prefill_ms),
            (self.decode, timings.decode_ms),
        )
        for tally, stage_ms in stages_ms:
            if stage_ms is not None:
                tally.add(stage_ms / 1000)
        if timings.hand_over is not None:
            self.hand_over.add(timings.hand_over.busy_ms / 1000)
            self.handed_over_bytes += timings.hand_over.num_bytes
        if timings.ttft_ms is not None and timings.decode_ms is not None:
            self.latency.add((timings.ttft_ms + timings.decode_ms) / 1000)
        if timings.decode_ms is not None and end.num_completion_tokens > 1:
            self.per_output_token.add(timings.decode_ms / 1000 / (end.num_completion_tokens - 1))
