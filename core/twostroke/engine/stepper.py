"""Runs one step: the only place that sees scheduler, runner and sampler together.

A fault ends the sequences that the failing run served and no others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from twostroke.engine.intake import Intake, Step, Work
from twostroke.engine.logprobs import token_logprob
from twostroke.engine.row_copies import run_copies
from twostroke.engine.runner import Runner
from twostroke.engine.sampler import UNUSABLE, Logits, sample
from twostroke.engine.scheduler import DecodeBatch, PrefillChunk
from twostroke.engine.sequence import Phase
from twostroke.errors import EngineError, TwostrokeError
from twostroke.life.observe import End, Observers, RunFacts
from twostroke.life.roofline import Bounds
from twostroke.life.timeline import ChunkTime, Clock
from twostroke.types import (
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Stroke,
    TokenEvent,
    TokenId,
    TokenLogprob,
)

log = logging.getLogger(__name__)


class Stepper:
    """Turns steps into events. Every method runs in the engine thread."""

    def __init__(
        self,
        intake: Intake,
        runner: Runner,
        clock: Clock,
        observers: Observers,
        bounds: Bounds | None = None,
    ) -> None:
        self._intake = intake
        self._runner = runner
        self._clock = clock
        self._observers = observers
        self._bounds = bounds

    def run(self, step: Step) -> None:
        """Tells what has ended, then runs the plan. Never raises on a fault of a run."""
        for work, reason in step.ended:
            self._tell_end(work, reason)
        for sequence, fault in run_copies(step.plan.copies, self._runner, self._intake):
            self._fail([self._intake.work_of(sequence)], fault, "copy a prefix")
        for chunk in step.plan.prefill:
            if chunk.sequence.phase is not Phase.ENDED:
                self._prefill(chunk)
        for batch in step.plan.decode:
            self._decode(batch)

    def fail_all(self, fault: Exception) -> None:
        """Ends everything in the engine after a fault of the engine itself."""
        self._fail(self._intake.all_work(), fault, "run a step")

    def start_over(self, fault: Exception) -> None:
        """Ends everything and empties the engine's books, which turned out wrong."""
        error = EngineError(
            f"The engine lost this request: its books were wrong ({fault}). Send it again; the "
            f"log has the details."
        )
        for work in self._intake.start_over():
            self._observers.ended(self._end(work, "failed", None))
            self._tell(work, FailedEvent(error))

    def abandon_all(self, fault: Exception) -> None:
        """The last resort where even `fail_all` failed: the engine takes no more requests."""
        log.critical("the engine has stopped", exc_info=fault)
        error = EngineError("The engine has stopped after a fault. Restart it; the log says why.")
        for work in self._intake.abandon():
            self._tell(work, FailedEvent(error))

    def _prefill(self, chunk: PrefillChunk) -> None:
        work = self._intake.work_of(chunk.sequence)
        began = self._clock()
        work.timeline.note_cached(chunk.sequence.num_cached_tokens)
        work.timeline.start_prefill(began)
        try:
            logits = self._read(chunk, work)  # [1, vocab]
            self._note_prefill(chunk, work, began)
            is_asked = chunk.is_last and not work.sequence.is_full
            tokens = self._choose(logits, [work]) if is_asked else []
        except Exception as fault:
            self._fail([work], fault, "prefill")
            return
        if work.sequence.phase is Phase.ENDED:  # its grammar failed
            return
        self._intake.commit_prefill(chunk)
        if chunk.is_last:
            work.timeline.end_prefill(self._clock())
            if tokens:
                self._accept(work, tokens[0], logits[0])
            else:
                self._finish(work, FinishReason.LENGTH)

    def _note_prefill(self, chunk: PrefillChunk, work: Work, began: float) -> None:
        now, num_tokens = self._clock(), len(chunk.token_ids)
        work.timeline.add_chunk(ChunkTime(chunk.start, num_tokens, began, now))
        self._observers.ran(RunFacts(Stroke.PREFILL, 1, num_tokens, chunk.start, began, now))

    def _read(self, chunk: PrefillChunk, work: Work) -> Logits:
        """Runs a chunk of a prompt; the logits of its last token, [1, vocab]."""
        if work.prompt_logprobs is None:
            return self._runner.prefill(
                chunk.row, chunk.start, chunk.token_ids, is_last=chunk.is_last
            )
        logits = self._runner.score(chunk.row, chunk.start, chunk.token_ids)  # [num_tokens, vocab]
        work.prompt_logprobs.add(chunk.start, logits)
        return logits[-1:]

    def _decode(self, batch: DecodeBatch) -> None:
        works = [None if s is None else self._intake.work_of(s) for s in batch.sequences]
        served = [work for work in works if work is not None]
        fed = [0 if s is None else s.answer_ids[-1] for s in batch.sequences]
        lengths = self._intake.span_lengths(batch.start, len(fed))
        began = self._clock()
        try:
            logits = self._runner.decode(batch.start, fed, lengths)  # [batch, vocab]
            self._note_decode(works, lengths, began)
            tokens = self._choose(logits, works)
        except Exception as fault:
            self._fail(served, fault, "decode")
            return
        for work, token_id, row in zip(works, tokens, logits, strict=True):  # row: [vocab]
            if work is not None and work.sequence.phase is not Phase.ENDED:
                self._intake.commit_decode(work.sequence)
                self._accept(work, token_id, row)

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

    def _choose(self, logits: Logits, works: Sequence[Work | None]) -> list[TokenId]:
        """A token for each row of `logits`, [batch, vocab]; ends those whose grammar fails."""
        states = [None if work is None else work.sampler for work in works]
        for row, work in enumerate(works):
            if work is None or work.matcher is None:
                continue
            try:
                work.sampler.allowed = work.matcher.allowed(logits.shape[1])
            except Exception as fault:
                self._fail([work], fault, "follow the grammar")
                states[row] = None
        return sample(logits, states)

    def _accept(self, work: Work, token_id: TokenId, logits: Logits) -> None:
        """Takes a token sampled from `logits`, [vocab]: tells it, or ends the sequence."""
        if token_id == UNUSABLE:
            fault = EngineError(
                "The graph answered logits that are no finite numbers, so no token can be chosen. "
                "Check the bundle with `twostroke verify`, or try another precision."
            )
            self._fail([work], fault, "sample")
            return
        sequence = work.sequence
        sequence.answer_ids.append(token_id)
        work.sampler.add(token_id)
        gap_s = work.timeline.add_token(self._clock())
        if gap_s is not None:
            self._observers.told(gap_s)
        logprob = _logprob(work, token_id, logits)
        if token_id in work.stop_ids:
            work.end_logprob = logprob
            self._finish(work, FinishReason.STOP)
            return
        if work.matcher is not None:
            try:
                work.matcher.accept(token_id)
            except Exception as fault:
                self._fail([work], fault, "follow the grammar")
                return
        if not self._tell(work, TokenEvent(token_id, len(sequence.answer_ids) - 1, logprob)):
            self._finish(work, FinishReason.ABORTED)
        elif work.matcher is not None and work.matcher.is_complete:
            self._finish(work, FinishReason.STOP)  # only an end-of-sequence token could follow
        elif sequence.is_full:
            self._finish(work, FinishReason.LENGTH)

    def _finish(self, work: Work, reason: FinishReason) -> None:
        outcome = "aborted" if reason is FinishReason.ABORTED else "finished"
        if self._intake.end(work, outcome):
            self._tell_end(work, reason)

    def _tell_end(self, work: Work, reason: FinishReason) -> None:
        outcome = "aborted" if reason is FinishReason.ABORTED else "finished"
        end = self._end(work, outcome, reason)
        self._observers.ended(end)
        self._tell(
            work,
            FinishedEvent(
                reason,
                num_prompt_tokens=end.num_prompt_tokens,
                num_completion_tokens=end.num_completion_tokens,
                timings=end.timings,
                prompt_logprobs=work.prompt_logprobs.found if work.prompt_logprobs else (),
                end_logprob=work.end_logprob,
                num_cached_tokens=work.sequence.num_cached_tokens,
            ),
        )

    def _fail(self, works: Sequence[Work], fault: Exception, doing: str) -> None:
        if isinstance(fault, TwostrokeError):
            error = fault
            log.error("failed to %s for %s: %s", doing, [w.request_id for w in works], fault)
        else:
            error = EngineError(
                f"The engine failed to {doing}: {type(fault).__name__}: {fault}. The sequence is "
                f"lost, others go on; the log has the details."
            )
            error.__cause__ = fault
            log.error("failed to %s", doing, exc_info=fault)
        for work in works:
            if self._intake.end(work, "failed"):
                self._observers.ended(self._end(work, "failed", None))
                self._tell(work, FailedEvent(error))

    def _tell(self, work: Work, event: Event) -> bool:
        """Calls the sink; False where it raised, which means that nobody listens any more."""
        try:
            work.sink(event)
        except Exception:
            log.exception("the listener of request %s failed", work.request_id)
            return False
        return True

    def _end(self, work: Work, outcome: str, reason: FinishReason | None) -> End:
        sequence = work.sequence
        work.timeline.end(self._clock())
        return End(
            outcome,
            reason,
            num_prompt_tokens=len(sequence.prompt_ids),
            num_completion_tokens=len(sequence.answer_ids),
            timings=work.timeline.timings(self._bounds),
        )


def _logprob(work: Work, token_id: TokenId, logits: Logits) -> TokenLogprob | None:
    num_top = work.sampler.params.logprobs
    return None if num_top is None else token_logprob(logits, token_id, num_top)
