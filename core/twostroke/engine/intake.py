"""Where other threads meet the engine thread: submissions, aborts, and the wait for work.

One lock guards the scheduler and the table of work. It is held for microseconds: never while a
graph runs, and never while a sink is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from twostroke.engine.kv_extent import Extent
from twostroke.engine.limits import EngineStats
from twostroke.engine.prefix_store import PrefixStore
from twostroke.engine.scheduler import PrefillChunk, Scheduler
from twostroke.engine.sequence import Sequence
from twostroke.engine.transfers import RowSave, Transfer
from twostroke.engine.work import Rest, Sink, Step, Tails, Work
from twostroke.engine.work_table import WorkTable
from twostroke.errors import TwostrokeError, UnavailableError
from twostroke.life.timeline import Clock

__all__ = ["IDLE_AFTER_S", "Intake", "Rest", "Sink", "Step", "Tails", "Work"]

IDLE_AFTER_S = 2.0
"""After so long without work memory is returned and the books are proved."""


class Intake:
    """Owns the lock around the scheduler and the table of work.

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
        self._changed = threading.Condition()
        self._table = WorkTable(scheduler)
        self._counts = self._table.counts
        self._is_accepting = True
        self._is_closed = False
        self._refusal: Callable[[], TwostrokeError] | None = None  # while nothing can be served

    def submit_all(self, works: Iterable[Work]) -> None:
        """Hands work to the engine thread: all of it, or none. Any thread.

        Raises:
            RequestError: an id is in use, or a sequence can never fit.
            UnavailableError: the queue is full, the engine is stopping, or it has lost its
                sessions.
        """
        works = tuple(works)
        with self._changed:
            if not self._is_accepting:
                raise UnavailableError("The engine is stopping. Try again when it is back.")
            if self._refusal is not None:
                raise self._refusal()
            self._table.add(works)
            self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """Asks for the end of a sequence; unknown ids are ignored. Any thread."""
        with self._changed:
            if self._table.abort(request_id):
                self._changed.notify_all()

    def next_step(self) -> Step | None:
        """Waits for work and answers it; None once closed and empty. Engine thread."""
        with self._changed:
            was_told = True
            while True:
                ended = self._table.take_ended()
                expired = self._table.take_expired(self._now())
                plan = self._scheduler.plan()
                if ended or expired or plan:
                    self._counts.num_steps += bool(plan)
                    if ended or expired:
                        self._changed.notify_all()
                    self._has_rested = False
                    cache = self._scheduler.cache
                    is_over = cache.num_touched_tokens > cache.num_tokens
                    tails = self._tails() if is_over else ()
                    return Step(ended, plan, expired, tails, queued=self._table.take_queued())
                if self._is_closed and not self._table:
                    return None
                if not was_told:
                    self._has_rested = True
                    rest = Rest(num_forgotten=len(self._table))
                    return Step((), plan, (), self._tails(), rest)
                was_told = self._changed.wait(None if self._has_rested else self._idle_after_s)

    def work_of(self, sequence: Sequence) -> Work:
        """The work a planned sequence belongs to."""
        return self._table[sequence.request_id]

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

    def note_transfer(self, transfer: Transfer, duration_s: float) -> None:
        """Learns what transfers cost. Engine thread."""
        self._scheduler.budget.transfers.observe(transfer, duration_s)

    def note_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Counts guessed tokens that were verified, and those of them that were right."""
        with self._changed:
            self._counts.num_drafted += num_drafted
            self._counts.num_accepted += num_accepted

    def note_given_back(self, row: int, num_tokens: int) -> None:
        """Notes that the memory behind the first tokens of a row went back to the system."""
        with self._changed:
            num_given_back = self._scheduler.cache.note_given_back(row, num_tokens)
            self._counts.num_given_back_tokens += num_given_back

    def note_extent(self, extent: Extent) -> None:
        """Notes what the KV cache has room for."""
        with self._changed:
            self._table.note_extent(extent)

    def note_refusal(self, extent: Extent) -> tuple[Work | None, list[RowSave]]:
        """Notes that the device leaves the KV cache no more room than `extent`.

        What would begin outside of it is placed anew in the next step. Kept rows are given up for
        that, and should be stored; where there are none, the largest is answered, for it to fail.
        """
        with self._changed:
            return self._table.note_refusal(extent)

    def idle_extent(self) -> Extent | None:
        """What the KV cache may shrink to; None: as it is."""
        with self._changed:
            cache = self._scheduler.cache
            return None if cache.room is None else cache.room.idle(cache.needs())

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
            has_ended = self._table.end(work, outcome)
            self._changed.notify_all()
            return has_ended

    def all_work(self) -> list[Work]:
        """Everything that waits or runs."""
        with self._changed:
            return self._table.all()

    def abandon(self) -> list[Work]:
        """Forgets everything without asking the scheduler, and refuses what comes."""
        with self._changed:
            self._is_accepting = False
            abandoned = self._table.forget_all()
            self._changed.notify_all()
            return abandoned

    def start_over(self, refusal: Callable[[], TwostrokeError] | None = None) -> list[Work]:
        """Forgets everything, rows that were kept too, and goes on with empty books.

        With a `refusal`, which makes an error, the KV cache is gone as well and `submit` raises
        what it makes until `resume`.
        """
        with self._changed:
            self._refusal = refusal
            forgotten = self._table.forget_all()
            self._scheduler.clear(is_lost=refusal is not None)
            self._changed.notify_all()
            return forgotten

    def resume(self) -> None:
        """Takes requests again."""
        with self._changed:
            self._refusal = None

    def wait_until_closed(self, timeout_s: float | None) -> bool:
        """Waits for `close`, None: for ever; False where it took longer. Engine thread."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def refuse(self) -> None:
        """From now on `submit` raises UnavailableError; what is here goes on. Any thread."""
        with self._changed:
            self._is_accepting = False

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Waits for everything to end; False where it took longer. Not in the engine thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._table, timeout_s)

    def close(self) -> None:
        """Aborts what is left and lets `next_step` answer None. Any thread."""
        with self._changed:
            self._is_accepting = False
            self._is_closed = True
            self._table.abort_all()
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        """The load right now. Any thread."""
        with self._changed:
            return self._counts.stats(self._scheduler)

    def check(self) -> None:
        """Proves the scheduler's invariants. Any thread."""
        with self._changed:
            self._scheduler.check()

    def _tails(self) -> Tails:
        return tuple(self._scheduler.cache.idle_tails()) if self._gives_back else ()

    def _now(self) -> float:
        """The clock where somebody has a deadline; else any time at all, for nothing."""
        return self._clock() if self._table.has_deadlines else 0.0
