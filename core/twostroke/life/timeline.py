"""When each stage of one sequence began and ended, and the `Timings` made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from twostroke.types import Timings

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
    tokenise_ms: float | None = None
    prefill_started_at: float | None = None
    prefill_ended_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the KV cache instead of computed
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    chunks: list[ChunkTime] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)  # of each decode step it shared

    def note_cached(self, num_tokens: int) -> None:
        """Notes prompt tokens that need no prefill."""
        self.num_cached_tokens = num_tokens

    def add_chunk(self, chunk: ChunkTime) -> None:
        """Notes a chunk of the prompt that was read."""
        self.chunks.append(chunk)

    def add_step(self, batch_size: int) -> None:
        """Notes a decode step that it shared with `batch_size` - 1 others."""
        self.batch_sizes.append(batch_size)

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
        self.last_token_at = now
        self.num_tokens += 1
        return gap_s

    def timings(self) -> Timings:
        """The stages reached so far, in milliseconds."""
        decode_ms = _ms(self.first_token_at, self.last_token_at)
        rate = None
        if decode_ms and self.num_tokens > 1:
            # The first token comes from prefill, so decode made one fewer.
            rate = (self.num_tokens - 1) * 1000.0 / decode_ms
        return Timings(
            queued_ms=_ms(self.submitted_at, self.prefill_started_at),
            tokenise_ms=self.tokenise_ms,
            prefill_ms=_ms(self.prefill_started_at, self.prefill_ended_at),
            ttft_ms=_ms(self.arrived_at, self.first_token_at),
            decode_ms=decode_ms,
            decode_tokens_per_s=rate,
        )


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000.0
