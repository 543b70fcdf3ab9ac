"""When each stage of one sequence began and ended, and the `Timings` made of it.

Nothing here grows with the length of an answer: latencies go into a sketch, chunks and steps into
series of a few entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twostroke.life.chunks import PromptChunks
from twostroke.life.latency_sketch import LatencySketch
from twostroke.life.steps import DecodeSteps
from twostroke.timings import (
    ChunkSpan,
    DecodeTimings,
    HandOverTimings,
    PrefillTimings,
    Preparation,
    Timings,
)

if TYPE_CHECKING:
    from twostroke.life.roofline import Bounds

Clock = Callable[[], float]
"""Answers seconds that never go back, such as `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """A chunk of a prompt: positions [start, start + num_tokens), and when it ran."""

    start: int
    num_tokens: int
    started_at: float
    ended_at: float


@dataclass(slots=True)
class Timeline:
    """The moments of one sequence, in seconds of the engine's clock.

    `arrived_at` is when the request came in, `submitted_at` when it reached the engine (tokenised);
    the others stay None until their stage is reached.
    """

    arrived_at: float
    submitted_at: float
    prepared: Preparation = field(default_factory=Preparation)
    prefill_started_at: float | None = None
    prefill_ended_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the KV cache instead of computed
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    chunks: PromptChunks = field(default_factory=PromptChunks)
    steps: DecodeSteps = field(default_factory=DecodeSteps)
    gaps: LatencySketch = field(default_factory=LatencySketch)  # from token to token
    hand_over: HandOverTimings | None = None

    def note_cached(self, num_tokens: int) -> None:
        """Notes prompt tokens that need no prefill."""
        self.num_cached_tokens = num_tokens

    def add_chunk(self, chunk: ChunkTime) -> None:
        """Notes a chunk of the prompt that was read."""
        self.chunks.add(chunk.start, chunk.num_tokens, chunk.started_at, chunk.ended_at)

    def add_step(
        self, batch_size: int, *, busy_s: float, past_tokens: int, batch_tokens: int
    ) -> None:
        """Notes a decode step that it shared with `batch_size` - 1 others and that took `busy_s`.

        `past_tokens` are those of its own row that were attended to, `batch_tokens` those of all
        the rows that were served.
        """
        self.steps.add(batch_size, busy_s, past_tokens, batch_tokens)

    def add_hand_over(self, num_bytes: int, busy_s: float, way: str) -> None:
        """Notes that a part of its KV cache went from one stroke's cache to the other's."""
        before = self.hand_over or HandOverTimings(0, 0.0, way)
        self.hand_over = HandOverTimings(
            before.num_bytes + num_bytes, before.busy_ms + busy_s * 1e3, way
        )

    def add_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Notes tokens that were guessed, and how many of them were right."""
        self.num_drafted_tokens += num_drafted
        self.num_accepted_tokens += num_accepted

    def start_prefill(self, now: float) -> None:
        """Notes the first prefill chunk; later chunks change nothing."""
        if self.prefill_started_at is None:
            self.prefill_started_at = now

    def end_prefill(self, now: float) -> None:
        """Notes that the whole prompt is in the KV cache."""
        self.prefill_ended_at = now

    def add_token(self, now: float) -> float | None:
        """Notes one more sampled token (an end-of-sequence token counts too).

        Answers the seconds since the token before it; None for the first.
        """
        gap_s = None if self.last_token_at is None else now - self.last_token_at
        if self.first_token_at is None:
            self.first_token_at = now
        if gap_s is not None:
            self.gaps.add(gap_s)
        self.last_token_at = now
        self.num_tokens += 1
        return gap_s

    def end(self, now: float) -> None:
        """Notes the end, however it came."""
        self.ended_at = now

    def timings(self, bounds: Bounds | None = None) -> Timings:
        """The stages reached so far; with a roofline where `bounds` are known."""
        decode_ms = _ms(self.first_token_at, self.last_token_at)
        rate = None
        if decode_ms and self.num_tokens > 1:
            # The first token comes from prefill, so decode made one fewer.
            rate = (self.num_tokens - 1) * 1000.0 / decode_ms
        queued_ms = _ms(self.submitted_at, self.prefill_started_at)
        prefill_ms = _ms(self.prefill_started_at, self.prefill_ended_at)
        ttft_ms = _ms(self.arrived_at, self.first_token_at)
        return Timings(
            template_ms=self.prepared.template_ms,
            tokenise_ms=self.prepared.tokenise_ms,
            constraint_ms=self.prepared.constraint_ms,
            queued_ms=queued_ms,
            prefill_ms=prefill_ms,
            other_ms=self._other_ms(ttft_ms, queued_ms, prefill_ms),
            ttft_ms=ttft_ms,
            decode_ms=decode_ms,
            decode_tokens_per_s=rate,
            total_ms=_ms(self.arrived_at, self.ended_at),
            prefill=self._prefill(prefill_ms),
            decode=self._decode(),
            hand_over=self.hand_over,
            roofline=bounds.roofline(self.chunks, self.steps, self.num_drafted_tokens)
            if bounds
            else None,
        )

    def _other_ms(self, ttft_ms: float | None, *stages_ms: float | None) -> float | None:
        """What of the time to the first token belongs to no stage."""
        if ttft_ms is None:
            return None
        ready = (
            self.prepared.template_ms,
            self.prepared.tokenise_ms,
            self.prepared.constraint_ms,
        )
        return max(0.0, ttft_ms - sum(ms for ms in (*ready, *stages_ms) if ms is not None))

    def _prefill(self, prefill_ms: float | None) -> PrefillTimings | None:
        if not len(self.chunks) and not self.num_cached_tokens:
            return None
        num_tokens = self.chunks.num_tokens
        return PrefillTimings(
            self.num_cached_tokens,
            num_tokens,
            len(self.chunks),
            self.chunks.busy_s * 1e3,
            num_tokens * 1e3 / prefill_ms if prefill_ms else None,
            tuple(
                ChunkSpan(
                    each.start,
                    each.num_tokens,
                    each.num_chunks,
                    (each.started_at - self.arrived_at) * 1e3,
                    each.busy_s * 1e3,
                )
                for each in self.chunks.entries
            ),
        )

    def _decode(self) -> DecodeTimings | None:
        num_steps = len(self.steps)
        if not num_steps:
            return None
        sizes = self.steps.batch_sizes
        median_s, max_s = self.gaps.quantile_s(0.5), self.gaps.max_s
        return DecodeTimings(
            num_steps,
            self.steps.busy_s * 1e3,
            sum(size * count for size, count in sizes.items()) / num_steps,
            max(sizes),
            None if median_s is None else median_s * 1e3,
            None if max_s is None else max_s * 1e3,
            self.num_drafted_tokens,
            self.num_accepted_tokens,
            self.steps.spans(),
        )


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000.0
