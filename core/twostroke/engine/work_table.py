"""The work of one engine by request id, and how it ends. Used under the intake's lock."""

from __future__ import annotations

from twostroke.engine.kv_cache import RowState
from twostroke.engine.kv_extent import Extent
from twostroke.engine.scheduler import Scheduler
from twostroke.engine.sequence import Phase
from twostroke.engine.transfers import RowSave
from twostroke.engine.work import Work
from twostroke.engine.work_counts import WorkCounts
from twostroke.errors import RequestError
from twostroke.types import FinishReason


class WorkTable:
    """Owns what waits or runs; tells the scheduler of each end, and counts it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.counts = WorkCounts()
        self._scheduler = scheduler
        self._work: dict[str, Work] = {}
        self._to_abort: set[str] = set()
        self._to_finish: list[Work] = []  # asked for no token at all

    def __len__(self) -> int:
        return len(self._work)

    def __getitem__(self, request_id: str) -> Work:
        return self._work[request_id]

    def all(self) -> list[Work]:
        """Everything that waits or runs."""
        return list(self._work.values())

    def add(self, works: tuple[Work, ...]) -> None:
        """Takes all of them, or none.

        Raises:
            RequestError: an id is in use, or a sequence can never fit.
            UnavailableError: the queue is full.
        """
        self._check_ids(works)
        at_once = [w for w in works if w.sequence.is_full and w.prompt_logprobs is None]
        self._scheduler.submit_all([w.sequence for w in works if w not in at_once])
        for work in at_once:
            work.sequence.phase = Phase.ENDED  # never needs a row
        self._to_finish += at_once
        self._work.update({work.request_id: work for work in works})

    def abort(self, request_id: str) -> bool:
        """Marks work that the next `take_ended` ends; False where there is none of that id."""
        is_known = request_id in self._work
        if is_known:
            self._to_abort.add(request_id)
        return is_known

    def abort_all(self) -> None:
        """Marks everything."""
        self._to_abort.update(self._work)

    def take_ended(self) -> tuple[tuple[Work, FinishReason], ...]:
        """Ends what was marked, and what asked for no token."""
        ended: list[tuple[Work, FinishReason]] = []
        for request_id in self._to_abort:
            work = self._work.get(request_id)
            if work is not None and self.end(work, "aborted"):
                ended.append((work, FinishReason.ABORTED))
        for work in self._to_finish:
            if self.end(work, "finished"):
                ended.append((work, FinishReason.LENGTH))
        self._to_abort.clear()
        self._to_finish.clear()
        return tuple(ended)

    def take_queued(self) -> tuple[Work, ...]:
        """Those that report progress and whose place in the queue has changed; notes it in them."""
        if not self._scheduler.num_waiting:
            return ()
        asking = {id(w.sequence): w for w in self._work.values() if w.reports_progress}
        if not asking:
            return ()
        moved = []
        for num_ahead, sequence in enumerate(self._scheduler.queue()):
            work = asking.get(id(sequence))
            if work is not None and work.num_ahead != num_ahead:
                work.num_ahead = num_ahead
                moved.append(work)
        return tuple(moved)

    @property
    def has_deadlines(self) -> bool:
        """Whether any of it must be over by some time."""
        return any(work.deadline_at is not None for work in self._work.values())

    def take_expired(self, now: float) -> tuple[tuple[Work, Phase], ...]:
        """Ends those whose deadline has passed. What they computed is as good as any."""
        expired = [
            (work, work.sequence.phase)
            for work in self._work.values()
            if work.deadline_at is not None and work.deadline_at <= now
        ]
        for work, _ in expired:
            self.end(work, "failed", is_row_sound=True)
        self.counts.num_expired += len(expired)
        return tuple(expired)

    def end(self, work: Work, outcome: str, *, is_row_sound: bool = False) -> bool:
        """Frees the row and forgets the work: `outcome` is finished, aborted or failed.

        False where it had ended before.
        """
        if self._work.get(work.request_id) is not work:
            return False
        del self._work[work.request_id]
        self.counts.note_end(outcome, work.sequence.phase)
        self._scheduler.end(work.sequence, keep=is_row_sound or outcome != "failed")
        return True

    def note_extent(self, extent: Extent) -> set[int]:
        """Notes what the KV cache has room for; the rows in use that lie outside."""
        cache = self._scheduler.cache
        assert cache.room is not None
        cache.room.extent = extent
        return set(cache.room.unfit(cache.needs()))

    def note_refusal(self, extent: Extent) -> tuple[Work | None, list[RowSave]]:
        """Gives up kept rows, or else names the work to fail; see `Intake.note_refusal`."""
        unfit = self.note_extent(extent)
        cache, prefixes = self._scheduler.cache, self._scheduler.prefixes
        without_room = [work for work in self._work.values() if work.sequence.row in unfit]
        kept = cache.rows(RowState.KEPT)
        # What is kept outside was to be moved there: it is not there yet.
        saves = [save for save in prefixes.kept_rows() if save.row not in unfit]
        for row in kept:
            prefixes.forget(row, None)
        largest = None
        if not kept:  # perhaps all others fit without it
            largest = max(without_room, key=lambda w: w.sequence.max_total_tokens, default=None)
        for work in without_room:
            if work is not largest:
                prefixes.take_back(work.sequence)
        return largest, saves

    def forget_all(self) -> list[Work]:
        """Forgets everything without asking the scheduler; it counts as failed."""
        forgotten = self.all()
        self._work.clear()
        self._to_finish.clear()
        self.counts.num_ended["failed"] += len(forgotten)
        return forgotten

    def _check_ids(self, works: tuple[Work, ...]) -> None:
        seen = set(self._work)
        for work in works:
            if work.request_id in seen:
                raise RequestError(
                    f"A request with the id {work.request_id!r} is running. Ids must be unique."
                )
            seen.add(work.request_id)
