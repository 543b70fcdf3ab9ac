"""Where other threads meet the engine thread: submissions, aborts, and the wait for work.

One lock guards the scheduler and the table of work. It is held for microseconds: never while a
graph runs, and never while a sink is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.engine.limits import EngineStats
from twostroke.engine.logprobs import PromptLogprobs
from twostroke.engine.sampler import SamplerState
from twostroke.engine.scheduler import Plan, PrefillChunk, Scheduler
from twostroke.engine.sequence import Phase, Sequence
from twostroke.errors import RequestError, UnavailableError
from twostroke.grammar import Matcher
from twostroke.life.timeline import Timeline
from twostroke.types import Event, FinishReason, TokenId, TokenLogprob

Sink = Callable[[Event], None]


@dataclass(slots=True, eq=False)
class Work:
    """A sequence with everything the step loop needs to serve it."""

    sequence: Sequence
    sink: Sink
    timeline: Timeline
    sampler: SamplerState
    stop_ids: frozenset[TokenId]  # end-of-sequence ids and the request's own
    matcher: Matcher | None = None  # of a constrained answer
    prompt_logprobs: PromptLogprobs | None = None  # where they are asked for
    end_logprob: TokenLogprob | None = None

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.sequence.request_id

    @property
    def has_ended(self) -> bool:
        """Whether its terminal event was told, or is about to be."""
        return self.sequence.phase is Phase.ENDED


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine thread does next: tell the ended ones, then run the plan."""

    ended: tuple[tuple[Work, FinishReason], ...]
    plan: Plan


class Intake:
    """Owns the table of work and the lock around the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._work: dict[str, Work] = {}
        self._to_abort: set[str] = set()
        self._to_finish: list[Work] = []  # asked for no token at all
        self._is_accepting = True
        self._is_closed = False
        self._num_steps = 0
        self._num_drafted = self._num_accepted = 0
        self._num_ended = {"finished": 0, "aborted": 0, "failed": 0}

    def submit(self, work: Work) -> None:
        """Hands work to the engine thread. Any thread.

        Raises:
            RequestError: the id is in use, or the sequence can never fit.
            UnavailableError: the queue is full, or the engine is stopping.
        """
        with self._changed:
            if not self._is_accepting:
                raise UnavailableError("The engine is stopping. Try again when it is back.")
            if work.request_id in self._work:
                raise RequestError(
                    f"A request with the id {work.request_id!r} is running. Ids must be unique."
                )
            if work.sequence.is_full and work.prompt_logprobs is None:
                work.sequence.phase = Phase.ENDED  # never needs a row
                self._to_finish.append(work)
            else:
                self._scheduler.submit(work.sequence)
            self._work[work.request_id] = work
            self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """Asks for the end of a sequence; unknown ids are ignored. Any thread."""
        with self._changed:
            if request_id in self._work:
                self._to_abort.add(request_id)
                self._changed.notify_all()

    def next_step(self) -> Step | None:
        """Waits for work and answers it; None once closed and empty. Engine thread."""
        with self._changed:
            while True:
                ended = self._take_ended()
                plan = self._scheduler.plan()
                if ended or plan:
                    self._num_steps += bool(plan)
                    return Step(ended, plan)
                if self._is_closed and not self._work:
                    return None
                self._changed.wait()

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

    def forget_row(self, row: int) -> None:
        """A copy to a row failed, so nobody may reuse it."""
        with self._changed:
            self._scheduler.prefixes.forget(row)

    def note_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Counts guessed tokens that were verified, and those of them that were right."""
        with self._changed:
            self._num_drafted += num_drafted
            self._num_accepted += num_accepted

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
            cache, reuse = self._scheduler.cache, self._scheduler.prefixes.counts
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
            )

    def check(self) -> None:
        """Proves the scheduler's invariants; for tests and idle moments."""
        with self._changed:
            self._scheduler.check()

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

    def _end(self, work: Work, outcome: str) -> bool:
        if self._work.get(work.request_id) is not work:
            return False
        del self._work[work.request_id]
        self._scheduler.end(work.sequence, keep=outcome != "failed")
        self._num_ended[outcome] += 1
        self._changed.notify_all()
        return True
