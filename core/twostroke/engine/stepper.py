"""Runs one step: the only place that sees scheduler, runner and sampler together.

A fault ends the sequences that the failing run served and no others.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from twostroke.engine.answers import Answers
from twostroke.engine.deadlines import deadline_error
from twostroke.engine.intake import Intake, Step, Work
from twostroke.engine.interruption import Interruption
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.resizing import make_room
from twostroke.engine.run_transfers import run_transfers
from twostroke.engine.sampler import Logits
from twostroke.engine.scheduler import DecodeBatch, PrefillChunk, VerifyRun
from twostroke.engine.sequence import Phase
from twostroke.engine.spans import block_of
from twostroke.engine.watched_runner import WatchedRunner
from twostroke.errors import DeviceLostError, EngineError
from twostroke.life.observe import Observers, RunFacts
from twostroke.life.timeline import ChunkTime, Clock
from twostroke.types import FailedEvent, FinishReason, Stroke, TokenId

log = logging.getLogger(__name__)


class Stepper:
    """Turns steps into events. Every method runs in the engine thread."""

    def __init__(
        self,
        intake: Intake,
        runner: WatchedRunner,
        clock: Clock,
        observers: Observers,
        answers: Answers,
    ) -> None:
        self._intake = intake
        self._runner = runner
        self._clock = clock
        self._observers = observers
        self.interruption = Interruption(runner.interrupt)
        self._answers = answers

    def run(self, step: Step) -> None:
        """Tells what has ended, then runs the plan. A run that fails ends those it served.

        Raises:
            DeviceLostError: nothing of what is in flight can go on.
        """
        for work, reason in step.ended:
            self._answers.tell_end(work, reason)
        for work, phase in step.expired:
            self._answers.tell_fault(work, deadline_error(work.sequence, phase))
        for work in step.queued:
            self._answers.tell_progress(work, 0, num_ahead=work.num_ahead)
        plan = make_room(step.plan, self._runner, self._intake, self._answers)
        run_transfers(plan.copies, self._runner, self._intake, self._clock)
        for chunk in plan.prefill:
            # One whose prefix could not be brought is read from its start in the next step.
            if chunk.start == self._intake.span_lengths(chunk.row, 1)[0]:
                self._prefill(chunk)
        for batch in plan.decode:
            self._decode(batch)
        for run in plan.verify:
            self._verify(run)

    def fail_all(self, fault: Exception) -> None:
        """Ends everything in the engine after a fault of the engine itself."""
        self._answers.fail(self._intake.all_work(), fault, "run a step")

    def start_over(self, fault: Exception) -> None:
        """Ends everything and empties the engine's books, which turned out wrong."""
        error = EngineError(
            f"The engine lost this request: its books were wrong ({fault}). Send it again; the "
            f"log has the details."
        )
        for work in self._intake.start_over():
            self._answers.tell_fault(work, error)

    def abandon_all(self, fault: Exception) -> None:
        """The last resort where even `fail_all` failed: the engine takes no more requests."""
        log.critical("the engine has stopped", exc_info=fault)
        error = EngineError("The engine has stopped after a fault. Restart it; the log says why.")
        for work in self._intake.abandon():
            self._answers.tell(work, FailedEvent(error))

    def _prefill(self, chunk: PrefillChunk) -> None:
        work = self._intake.work_of(chunk.sequence)
        began = self._clock()
        work.timeline.note_cached(chunk.sequence.num_cached_tokens)
        work.timeline.start_prefill(began)
        if chunk.start == chunk.sequence.num_cached_tokens:  # the first one
            self._answers.tell_progress(work, chunk.start)
        try:
            logits = self._read(chunk, work)  # [1, vocab]
            self._note_prefill(chunk, work, began)
            is_asked = chunk.is_last and not work.sequence.is_full
            tokens = self._answers.choose(logits, [work]) if is_asked else []
        except InterruptedError:
            return  # nothing of the chunk counts as read
        except DeviceLostError:
            raise
        except Exception as fault:
            self._answers.fail([work], fault, "prefill")
            return
        if work.sequence.phase is Phase.ENDED:  # its grammar failed
            return
        self._intake.commit_prefill(chunk)
        self._answers.tell_progress(work, chunk.start + len(chunk.token_ids))
        if chunk.is_last:
            work.timeline.end_prefill(self._clock())
            if tokens:
                self._answers.accept(work, tokens[0], lambda: logits[0])
            else:
                self._answers.finish(work, FinishReason.LENGTH)

    def _note_prefill(self, chunk: PrefillChunk, work: Work, began: float) -> None:
        now, num_tokens = self._clock(), len(chunk.token_ids)
        work.timeline.add_chunk(ChunkTime(chunk.start, num_tokens, began, now))
        moved = self._runner.take_hand_over()
        if moved is not None:
            work.timeline.add_hand_over(moved.num_bytes, moved.seconds, moved.way)
        self._observers.ran(RunFacts(Stroke.PREFILL, 1, num_tokens, chunk.start, began, now))

    def _read(self, chunk: PrefillChunk, work: Work) -> Logits:
        """Runs a chunk of a prompt; the logits of its last token, [1, vocab].

        Raises:
            InterruptedError: its request was aborted meanwhile; the next step ends it.
        """
        self.interruption.begin(work.request_id)
        try:
            logits = self._run_chunk(chunk, work)
        except Exception as fault:
            if self.interruption.end(has_failed=True):
                raise InterruptedError from fault
            raise
        self.interruption.end(has_failed=False)
        return logits

    def _run_chunk(self, chunk: PrefillChunk, work: Work) -> Logits:
        start, token_ids = not_alone(chunk)
        if work.prompt_logprobs is None:
            return self._runner.prefill(chunk.row, start, token_ids, is_last=chunk.is_last)
        logits = self._runner.score(chunk.row, start, token_ids)  # [num_tokens, vocab]
        work.prompt_logprobs.add(chunk.start, logits[chunk.start - start :])
        return logits[-1:]

    def _decode(self, batch: DecodeBatch) -> None:
        start, works = self._rows_of(batch)
        served = [work for work in works if work is not None]
        fed = [0 if work is None else work.sequence.answer_ids[-1] for work in works]
        lengths = self._intake.span_lengths(start, len(fed))
        began = self._clock()
        try:
            logits = self._run_decode(start, fed, lengths, works)  # [batch, vocab]
            self._note_decode(works, lengths, began)
            tokens = self._answers.choose(logits, works)
        except DeviceLostError:
            raise
        except Exception as fault:
            self._answers.fail(served, fault, "decode")
            return
        row_of = logits.row if isinstance(logits, ReducedLogits) else logits.__getitem__
        for row, (work, token_id) in enumerate(zip(works, tokens, strict=True)):
            if work is not None and work.sequence.phase is not Phase.ENDED:
                self._intake.commit_decode(work.sequence)
                self._answers.accept(work, token_id, functools.partial(row_of, row))  # [vocab]

    def _rows_of(self, batch: DecodeBatch) -> tuple[int, list[Work | None]]:
        """The first row of a decode run and who decodes in its rows; None where nobody does."""
        works = [None if s is None else self._intake.work_of(s) for s in batch.sequences]
        if not self._runner.replays_decode:
            return batch.start, works
        start, count = block_of(batch.start, len(works), self._runner.extent.num_rows)
        padded: list[Work | None] = [None] * count
        padded[batch.start - start : batch.start - start + len(works)] = works
        return start, padded

    def _run_decode(
        self,
        start_row: int,
        fed: Sequence[TokenId],
        lengths: Sequence[int],
        works: Sequence[Work | None],
    ) -> Logits | ReducedLogits:
        if not self._runner.reduces_logits:
            return self._runner.decode(start_row, fed, lengths)
        scales = [1.0 if work is None else work.sampler.inverse_temperature for work in works]
        return self._runner.decode_reduced(start_row, fed, lengths, scales)

    def _note_decode(
        self, works: Sequence[Work | None], lengths: Sequence[int], began: float
    ) -> None:
        count = len(lengths)
        facts = RunFacts(Stroke.DECODE, count, count, sum(lengths), began, self._clock())
        served = [(w, length) for w, length in zip(works, lengths, strict=True) if w is not None]
        batch_tokens = sum(length for _, length in served)
        for work, length in served:
            work.timeline.add_step(
                len(served),
                busy_s=facts.duration_s,
                past_tokens=length,
                batch_tokens=batch_tokens,
            )
        self._observers.ran(facts)

    def _verify(self, run: VerifyRun) -> None:
        """Takes the tokens of a draft for as long as they are what would have been chosen anyway.

        Each is chosen from the logits before it with the same sampler and the same random numbers
        as in decode, so a draft decides how many runs an answer takes and not what it says.
        """
        work, began = self._intake.work_of(run.sequence), self._clock()
        num_accepted = 0
        try:
            logits = self._runner.verify(run.row, run.start, run.token_ids)  # [1 + drafted, vocab]
            self._note_verify(run, work, began)
            for guess, row in zip((*run.token_ids[1:], None), logits, strict=True):  # row: [vocab]
                (token_id,) = self._answers.choose(row[None], [work])
                if work.has_ended:  # its grammar failed
                    break
                self._intake.commit_decode(work.sequence)
                is_right = token_id == guess
                num_accepted += is_right
                work.timeline.add_drafts(0, int(is_right))  # before a terminal event tells of it
                self._answers.accept(work, token_id, functools.partial(_itself, row))
                if not is_right or work.has_ended:
                    break
        except DeviceLostError:
            raise
        except Exception as fault:
            self._answers.fail([work], fault, "verify a draft")
        self._intake.note_drafts(len(run.token_ids) - 1, num_accepted)

    def _note_verify(self, run: VerifyRun, work: Work, began: float) -> None:
        num_new = len(run.token_ids)
        facts = RunFacts(Stroke.DECODE, 1, num_new, run.start, began, self._clock(), num_new - 1)
        work.timeline.add_drafts(num_new - 1, 0)
        work.timeline.add_step(
            1, busy_s=facts.duration_s, past_tokens=run.start, batch_tokens=run.start
        )
        self._observers.ran(facts)


def _itself(row: Logits) -> Logits:
    return row


def not_alone(chunk: PrefillChunk) -> tuple[int, tuple[TokenId, ...]]:
    """Start and ids of what is run for a chunk: one token takes the one before it along.

    Kernels sum a single row in another order than several, and with 8-bit activations another last
    bit is now and then another token. So a prompt gives the same answer however it is cut, and
    whatever of it was in the cache; the token before is written again, as it was.
    """
    if len(chunk.token_ids) != 1 or chunk.start == 0:
        return chunk.start, chunk.token_ids
    before = chunk.start - 1
    return before, (chunk.sequence.prompt_ids[before], *chunk.token_ids)
