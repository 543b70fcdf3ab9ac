"""What an engine may hold, and what it holds right now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twostroke.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The bounds of one engine.

    `context_tokens` None means the bundle's own limit; `kv_budget_bytes` None means what weights
    and workspace leave of the free memory, less a tenth. With `reuse_prefixes` the rows of ended
    sequences are kept for prompts that begin alike: of the same scope, or of any with
    `share_prefixes`. `speculation`: guesses of at most `max_draft_tokens` are verified always, or
    where it pays. Raises ConfigError with every value that is out of range.
    """

    max_rows: int = 8
    max_queue: int = 64
    prefill_chunk_tokens: int = 256
    context_tokens: int | None = None
    kv_budget_bytes: int | None = None
    reuse_prefixes: bool = True
    share_prefixes: bool = False
    speculation: Literal["auto", "on", "off"] = "off"
    max_draft_tokens: int = 8

    def __post_init__(self) -> None:
        lowest = {
            "max_rows": 1,
            "max_queue": 0,
            "prefill_chunk_tokens": 1,
            "context_tokens": 2,
            "max_draft_tokens": 1,
        }
        problems = [
            f"{name} must be {low} or more, not {value}"
            for name, low in lowest.items()
            if (value := getattr(self, name)) is not None and value < low
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's load; what begins with `num_` counts since its start, but rows and
    the numbers of running and waiting sequences.

    `kv_tokens_used` are tokens written to rows that are in use, not tokens reserved;
    `kv_tokens_touched` are those for which memory was taken since the start; `kv_tokens_kept` those
    of ended sequences, kept for reuse. Of `num_prompt_tokens`, `num_cached_tokens` were not
    computed, in `num_prefix_hits` prompts; `num_copied_tokens` went from row to row. Of
    `num_drafted_tokens` that were guessed and verified, `num_accepted_tokens` were right.
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
    kv_tokens_touched: int = 0
    kv_tokens_kept: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_prefix_hits: int = 0
    num_copied_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
