"""What has become of an engine's work: the counters behind `EngineStats`."""

from __future__ import annotations

from twostroke.engine.limits import EngineStats
from twostroke.engine.scheduler import Scheduler
from twostroke.engine.sequence import Phase


class WorkCounts:
    """Counts since the engine's start. Written under the intake's lock."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_drafted = self.num_accepted = 0  # tokens
        self.num_given_back_tokens = 0
        self.num_expired = 0
        self.num_ended = {"finished": 0, "aborted": 0, "failed": 0}
        self.num_aborted = dict.fromkeys(Phase, 0)  # by where they stood

    def note_end(self, outcome: str, phase: Phase) -> None:
        """Counts a sequence that ended in `phase`: finished, aborted or failed."""
        if outcome == "aborted":
            self.num_aborted[phase] += 1
        self.num_ended[outcome] += 1

    def stats(self, scheduler: Scheduler) -> EngineStats:
        """The counts, and the scheduler's load right now."""
        cache, prefixes = scheduler.cache, scheduler.prefixes
        reuse, store = prefixes.counts, prefixes.store
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_rows=cache.num_rows,
            kv_tokens_used=cache.num_used_tokens,
            kv_tokens_total=cache.num_tokens,
            num_steps=self.num_steps,
            num_finished=self.num_ended["finished"],
            num_aborted=self.num_ended["aborted"],
            num_failed=self.num_ended["failed"],
            kv_tokens_touched=cache.num_touched_tokens,
            kv_tokens_spare=cache.num_spare_tokens,
            kv_tokens_longest=cache.num_longest_tokens,
            num_drafted_tokens=self.num_drafted,
            num_accepted_tokens=self.num_accepted,
            kv_tokens_kept=cache.num_kept_tokens,
            num_prompt_tokens=reuse.num_prompt_tokens,
            num_cached_tokens=reuse.num_cached_tokens,
            num_prefix_hits=reuse.num_hits,
            num_copied_tokens=reuse.num_copied_tokens,
            num_given_back_tokens=self.num_given_back_tokens,
            num_aborted_waiting=self.num_aborted[Phase.WAITING],
            num_aborted_prefill=self.num_aborted[Phase.PREFILL],
            num_aborted_decode=self.num_aborted[Phase.DECODE],
            num_expired=self.num_expired,
            num_restored_tokens=reuse.num_restored_tokens,
            prefix_store_bytes=0 if store is None else store.num_bytes,
        )
