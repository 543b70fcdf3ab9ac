"""What an engine may hold, and what it holds right now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twostroke.errors import ConfigError

DEFAULT_CHUNK_TOKENS = 256
"""The pieces of prompts where nobody says how long: what the CPU's kernels compute best."""

_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """What is done about sessions that fail.

    A run of a graph may take `watchdog_s`, or ten times what such runs took of late where that is
    more (None: for ever). New sessions are tried for `max_tries` times in a row, 0: never. Raises
    ConfigError with every value that is out of range.
    """

    watchdog_s: float | None = 120.0
    max_tries: int = 10

    @property
    def grace_s(self) -> float:
        """How long a run that was interrupted has to come back."""
        return _GRACE_S if self.watchdog_s is None else min(_GRACE_S, self.watchdog_s)

    def __post_init__(self) -> None:
        problems = []
        if self.watchdog_s is not None and not self.watchdog_s > 0:
            problems.append(f"watchdog_s must be more than 0, not {self.watchdog_s}")
        if self.max_tries < 0:
            problems.append(f"max_tries must be 0 or more, not {self.max_tries}")
        if problems:
            raise ConfigError(problems)


DEFAULT_RECOVERY = RecoveryLimits()


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The bounds of one engine.

    `prefill_chunk_tokens` None means what the backend of prefill advises, or DEFAULT_CHUNK_TOKENS;
    `context_tokens` None means the bundle's own limit; `kv_budget_bytes` None means what weights
    and workspace leave of the free memory, less a tenth. Unless `reuse_prefixes` is off, the rows
    of ended sequences are kept for prompts that begin alike: of the same scope, or of any with
    `share_prefixes`; where it is `exact`, only as far as they hold what the prompt itself would
    have written. Those that must go are stored in up to `prefix_store_bytes` of host memory, or of
    files in `prefix_store_path`. `max_stall_ms` shortens prompt chunks while others decode, so
    that these wait no longer for their next token (None: never); `request_timeout_s` ends a request
    that takes longer. `speculation`: guesses of at most `max_draft_tokens` are verified always, or
    where it pays. Raises ConfigError with every value that is out of range.
    """

    max_rows: int = 8
    max_queue: int = 64
    prefill_chunk_tokens: int | None = None
    context_tokens: int | None = None
    kv_budget_bytes: int | None = None
    reuse_prefixes: Literal["exact", "all", "off"] = "exact"
    share_prefixes: bool = False
    speculation: Literal["auto", "on", "off"] = "off"
    max_draft_tokens: int = 8
    max_stall_ms: float | None = 200.0
    request_timeout_s: float | None = None
    prefix_store_bytes: int = 0
    prefix_store_path: Path | None = None
    recovery: RecoveryLimits = DEFAULT_RECOVERY

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
        problems += [
            f"{name} must be more than 0, not {value}"
            for name in ("max_stall_ms", "request_timeout_s")
            if (value := getattr(self, name)) is not None and not value > 0
        ]
        if self.prefix_store_path is not None and not self.prefix_store_bytes:
            problems.append("a folder for prefixes needs a size: set kv.prefixes.store, e.g. 1GiB")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's load; what begins with `num_` counts since its start, but rows and
    the numbers of running and waiting sequences.

    `kv_tokens_used` are tokens written to rows that are in use, not tokens reserved;
    `kv_tokens_touched` are those for which memory is taken, `kv_tokens_spare` those of the row more
    that graphs need which answer a new cache, `kv_tokens_longest` those of the longest row that
    was ever run; `kv_tokens_kept` those of ended
    sequences, kept for reuse; for `num_given_back_tokens` memory was returned to the system. Of
    `num_prompt_tokens`, `num_cached_tokens` were not computed, in `num_prefix_hits` prompts;
    `num_copied_tokens` went from row to row, `num_restored_tokens` came from the store, which holds
    `prefix_store_bytes` now. `num_aborted` is told apart by where the sequences stood;
    `num_expired` are those of `num_failed` whose deadline passed; `num_interrupted_chunks` of
    prompts were not read to their end. Of `num_drafted_tokens`
    that were guessed and verified, `num_accepted_tokens` were right.
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
    kv_tokens_spare: int = 0
    kv_tokens_longest: int = 0
    kv_tokens_kept: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_prefix_hits: int = 0
    num_copied_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_given_back_tokens: int = 0
    num_aborted_waiting: int = 0
    num_aborted_prefill: int = 0
    num_aborted_decode: int = 0
    num_expired: int = 0
    num_interrupted_chunks: int = 0
    num_restored_tokens: int = 0
    prefix_store_bytes: int = 0
