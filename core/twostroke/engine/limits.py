"""What an engine may hold, and what it holds right now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The bounds of one engine.

    `context_tokens` None means the bundle's own limit; `kv_budget_bytes` None means half of the
    free memory.
    """

    max_rows: int = 8
    max_queue: int = 64
    prefill_chunk_tokens: int = 256
    context_tokens: int | None = None
    kv_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's load; the last four count since its start.

    `kv_tokens_used` are tokens written to rows that are in use, not tokens reserved.
    """

    num_running: int
    num_waiting: int
    num_rows: int
    kv_tokens_used: int
    kv_tokens_total: int
    num_steps: int
    num_finished: int
    num_aborted: int
    num_failed: int
