"""Where other threads meet the engine thread: submissions, aborts, and the wait for work.

One lock guards the scheduler and the table of work. It is held for microseconds: never while a
graph runs, and never while a sink is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from twostroke.engine.limits import EngineStats
from twostroke.engine.prefix_store import PrefixStore
from twostroke.engine.scheduler import PrefillChunk, Scheduler
from twostroke.engine.sequence import Phase, Sequence
from twostroke.engine.transfers import RowSave
from twostroke.engine.work import Rest, Sink, Step, Tails, Work
from twostroke.errors import RequestError, UnavailableError
from twostroke.life.timeline import Clock
from twostroke.types import FinishReason

__all__ = ["IDLE_AFTER_S", "Intake", "Rest", "Sink", "Step", "Tails", "Work"]

IDLE_AFTER_S = 2.0
"""After so long without work memory is returned and the books are proved."""


class Intake:
    """Owns the table of work and the lock around the scheduler.

    After `idle_after_s` without work there is one step of rest.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock = time.monotonic,
        *,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._idle_after_s = idle_after_s
        self._has_rested = True  # nothing was done since the last rest
        self._gives_back = True
        self._num_given_back_tokens = 0
        self._changed = threading.Condition()
        self._work: dict[str, Work] = {}
        self._to_abort: set[str] = set()
        self._to_finish: list[Work] = []  # asked for no token at all
        self._is_accepting = True
        self._is_closed = False
        self._num_steps = 0
        self._num_drafted = self._num_accepted = 0
        self._num_ended = {"finished": 0, "aborted": 0, "failed": 0}
        self._num_aborted = dict.fromkeys(Phase, 0)  # by where they stood
        self._num_expired = 0

    def submit_all(self, works: Iterable[Work]) -> None:
        """Hands work to the engine thread: all of it, or none. Any thread.

        Raises:
            RequestError: an id is in use, or a sequence can never fit.
            UnavailableError: the queue is full, or the engine is stopping.
        """
        works = tuple(works)
        with self._changed:
            if not self._is_accepting:
                raise UnavailableError("The engine is stopping. Try again when it is back.")
            self._check_ids(works)
            at_once = [w for w in works if w.sequence.is_full and w.prompt_logprobs is None]
            self._scheduler.submit_all([w.sequence for w in works if w not in at_once])
            for work in at_once:
                work.sequence.phase = Phase.ENDED  # never needs a row
            self._to_finish += at_once
            self._work.update({work.request_id: work for work in works})
            self._changed.notify_all()

    def _check_ids(self, works: Iterable[Work]) -> None:
        seen = set(self._work)
        for work in works:
            if work.request_id in seen:
                raise RequestError(
                    f"A request with the id {work.request_id!r} is running. Ids must be unique."
                )
            seen.add(work.request_id)

    def abort(self, request_id: str) -> None:
        """Asks for the end of a sequence; unknown ids are ignored. Any thread."""
        with self._changed:
            if request_id in self._work:
                self._to_abort.add(request_id)
                self._changed.notify_all()

    def next_step(self) -> Step | None:
        """Waits for work and answers it; None once closed and empty. Engine thread."""
        with self._changed:
            was_told = True
            while True:
                ended = self._take_ended()
                expired = self._take_expired()
                plan = self._scheduler.plan()
                if ended or expired or plan:
                    self._num_steps += bool(plan)
                    self._has_rested = False
                    cache = self._scheduler.cache
                    is_over = cache.num_touched_tokens > cache.num_tokens
                    return Step(ended, plan, expired, self._tails() if is_over else ())
                if self._is_closed and not self._work:
                    return None
                if not was_told:
                    self._has_rested = True
                    rest = Rest(num_forgotten=len(self._work))
                    return Step((), plan, (), self._tails(), rest)
                was_told = self._changed.wait(None if self._has_rested else self._idle_after_s)

    def work_of(self, sequence: Sequence) -> Work:
        """The work a planned sequence belongs to."""
        return self._work[sequence.request_id]

    def commit_prefill(self, chunk: PrefillChunk) -> None:
        """Notes that a chunk is in its row."""
        with self._changed:
            self._scheduler.commit_prefill(chunk)

    def commit_decode(self, sequence: Sequence) -> None:
        """Notes that a sequence's newest token is in its row."""
        with self._changed:
            self._scheduler.commit_decode(sequence)

    @property
    def prefix_store(self) -> PrefixStore | None:
        """Where prefixes go that must leave the KV cache. Engine thread."""
        return self._scheduler.prefixes.store

    def kept_rows(self) -> list[RowSave]:
        """What is kept in the KV cache, to be stored."""
        with self._changed:
            return list(self._scheduler.prefixes.kept_rows())

    def forget_row(self, row: int, sequence: Sequence | None) -> None:
        """A row could not be filled; the sequence that should go on in it starts anew."""
        with self._changed:
            self._scheduler.prefixes.forget(row, sequence)

    def note_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Counts guessed tokens that were verified, and those of them that were right."""
        with self._changed:
            self._num_drafted += num_drafted
            self._num_accepted += num_accepted

    def note_given_back(self, row: int, num_tokens: int) -> None:
        """Notes that the memory behind the first tokens of a row went back to the system."""
        with self._changed:
            cache = self._scheduler.cache
            self._num_given_back_tokens += cache.note_given_back(row, num_tokens)

    def keep_tails(self) -> None:
        """No step names rows to give back from now on: the backend cannot."""
        self._gives_back = False

    def row_lengths(self) -> list[int]:
        """Tokens in each row."""
        return self.span_lengths(0, self._scheduler.cache.num_rows)

    def span_lengths(self, start: int, count: int) -> list[int]:
        """Tokens in the rows [start, start + count)."""
        return self._scheduler.cache.span_lengths(start, count)

    def end(self, work: Work, outcome: str) -> bool:
        """Frees the row and forgets the work: `outcome` is finished, aborted or failed.

        False where it had ended before, so that the caller sends no second terminal event.
        """
        with self._changed:
            return self._end(work, outcome)

    def all_work(self) -> list[Work]:
        """Everything that waits or runs."""
        with self._changed:
            return list(self._work.values())

    def abandon(self) -> list[Work]:
        """Forgets everything without asking the scheduler, and refuses what comes."""
        with self._changed:
            self._is_accepting = False
            abandoned = list(self._work.values())
            self._work.clear()
            self._num_ended["failed"] += len(abandoned)
            self._changed.notify_all()
            return abandoned

    def start_over(self) -> list[Work]:
        """Forgets everything, rows that were kept too, and goes on with empty books."""
        with self._changed:
            forgotten = list(self._work.values())
            self._work.clear()
            self._to_finish.clear()
            self._scheduler.clear()
            self._num_ended["failed"] += len(forgotten)
            self._changed.notify_all()
            return forgotten

    def refuse(self) -> None:
        """From now on `submit` raises UnavailableError; what is here goes on. Any thread."""
        with self._changed:
            self._is_accepting = False

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Waits for everything to end; False where it took longer. Not in the engine thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._work, timeout_s)

    def close(self) -> None:
        """Aborts what is left and lets `next_step` answer None. Any thread."""
        with self._changed:
            self._is_accepting = False
            self._is_closed = True
            self._to_abort.update(self._work)
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        """The load right now. Any thread."""
        with self._changed:
            cache, prefixes = self._scheduler.cache, self._scheduler.prefixes
            reuse, store = prefixes.counts, prefixes.store
            return EngineStats(
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                num_rows=cache.num_rows,
                kv_tokens_used=cache.num_used_tokens,
                kv_tokens_total=cache.num_tokens,
                num_steps=self._num_steps,
                num_finished=self._num_ended["finished"],
                num_aborted=self._num_ended["aborted"],
                num_failed=self._num_ended["failed"],
                kv_tokens_touched=cache.num_touched_tokens,
                num_drafted_tokens=self._num_drafted,
                num_accepted_tokens=self._num_accepted,
                kv_tokens_kept=cache.num_kept_tokens,
                num_prompt_tokens=reuse.num_prompt_tokens,
                num_cached_tokens=reuse.num_cached_tokens,
                num_prefix_hits=reuse.num_hits,
                num_copied_tokens=reuse.num_copied_tokens,
                num_given_back_tokens=self._num_given_back_tokens,
                num_aborted_waiting=self._num_aborted[Phase.WAITING],
                num_aborted_prefill=self._num_aborted[Phase.PREFILL],
                num_aborted_decode=self._num_aborted[Phase.DECODE],
                num_expired=self._num_expired,
                num_restored_tokens=reuse.num_restored_tokens,
                prefix_store_bytes=0 if store is None else store.num_bytes,
            )

    def check(self) -> None:
        """Proves the scheduler's invariants. Any thread."""
        with self._changed:
            self._scheduler.check()

    def _tails(self) -> Tails:
        return tuple(self._scheduler.cache.idle_tails()) if self._gives_back else ()

    def _take_ended(self) -> tuple[tuple[Work, FinishReason], ...]:
        ended: list[tuple[Work, FinishReason]] = []
        for request_id in self._to_abort:
            work = self._work.get(request_id)
            if work is not None and self._end(work, "aborted"):
                ended.append((work, FinishReason.ABORTED))
        for work in self._to_finish:
            if self._end(work, "finished"):
                ended.append((work, FinishReason.LENGTH))
        self._to_abort.clear()
        self._to_finish.clear()
        return tuple(ended)

    def _take_expired(self) -> tuple[tuple[Work, Phase], ...]:
        """Ends those whose deadline has passed. What they computed is as good as any."""
        works = [work for work in self._work.values() if work.deadline_at is not None]
        now = self._clock() if works else 0.0
        expired = [
            (work, work.sequence.phase)
            for work in works
            if work.deadline_at is not None and work.deadline_at <= now
        ]
        for work, _ in expired:
            self._end(work, "failed", is_row_sound=True)
        self._num_expired += len(expired)
        return tuple(expired)

    def _end(self, work: Work, outcome: str, *, is_row_sound: bool = False) -> bool:
        if self._work.get(work.request_id) is not work:
            return False
        del self._work[work.request_id]
        if outcome == "aborted":
            self._num_aborted[work.sequence.phase] += 1
        self._scheduler.end(work.sequence, keep=is_row_sound or outcome != "failed")
        self._num_ended[outcome] += 1
        self._changed.notify_all()
        return True
