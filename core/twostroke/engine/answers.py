"""What becomes of logits: tokens chosen and accepted, and what their listeners are told.

The one place that ends sequences, so that each gets exactly one terminal event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from twostroke.engine.frames import clear_frames
from twostroke.engine.health import EngineHealth
from twostroke.engine.intake import Intake, Work
from twostroke.engine.logprobs import token_logprob
from twostroke.engine.narrowed import sample_reduced
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.sampler import UNUSABLE, Logits, sample
from twostroke.errors import EngineError, TwostrokeError
from twostroke.life.observe import End, Observers
from twostroke.life.roofline import Bounds
from twostroke.life.timeline import Clock
from twostroke.types import (
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    TokenEvent,
    TokenId,
    TokenLogprob,
)

log = logging.getLogger(__name__)


class Answers:
    """Makes events of logits. Every method runs in the engine thread."""

    def __init__(
        self,
        intake: Intake,
        clock: Clock,
        observers: Observers,
        health: EngineHealth,
        bounds: Bounds | None = None,
    ) -> None:
        self._intake = intake
        self._clock = clock
        self._observers = observers
        self._health = health
        self._bounds = bounds

    def choose(self, logits: Logits | ReducedLogits, works: Sequence[Work | None]) -> list[TokenId]:
        """A token for each row of `logits`, [batch, vocab].

        Ends those whose grammar or whose sampling fails, and no others.
        """

        def fail_row(row: int, fault: Exception) -> None:
            work = works[row]
            assert work is not None  # or nothing was sampled
            self.fail([work], fault, "sample")

        states = [None if work is None else work.sampler for work in works]
        for row, work in enumerate(works):
            if work is None or work.matcher is None:
                continue
            try:
                work.sampler.allowed = work.matcher.allowed(logits.shape[1])
            except Exception as fault:
                self.fail([work], fault, "follow the grammar")
                states[row] = None
        if isinstance(logits, ReducedLogits):
            return sample_reduced(logits, states, fail_row)
        return sample(logits, states, fail_row)

    def accept(self, work: Work, token_id: TokenId, row: Callable[[], Logits]) -> None:
        """Takes a token sampled from the logits that `row` answers, [vocab]: tells it, or ends the
        sequence.

        Whatever fails in that is the end of this sequence only.
        """
        try:
            self._take(work, token_id, row)
        except Exception as fault:
            self.fail([work], fault, "take a token")

    def _take(self, work: Work, token_id: TokenId, row: Callable[[], Logits]) -> None:
        if token_id == UNUSABLE:
            fault = EngineError(
                "The graph answered logits that are no finite numbers, so no token can be chosen. "
                "Check the bundle with `twostroke verify`, or try another precision."
            )
            self._health.note_failure("logits")
            self.fail([work], fault, "sample")
            return
        sequence = work.sequence
        sequence.answer_ids.append(token_id)
        work.sampler.add(token_id)
        gap_s = work.timeline.add_token(self._clock())
        if gap_s is not None:
            self._observers.told(gap_s)
        logprob = _logprob(work, token_id, row)
        if token_id in work.stop_ids:
            work.end_logprob = logprob
            self.finish(work, FinishReason.STOP)
            return
        if work.matcher is not None:
            try:
                work.matcher.accept(token_id)
            except Exception as fault:
                self.fail([work], fault, "follow the grammar")
                return
        index = len(sequence.answer_ids) - 1
        if not self.tell(work, TokenEvent(token_id, index, logprob, _of_prompt(work, index))):
            self.finish(work, FinishReason.ABORTED)
        elif work.matcher is not None and work.matcher.is_complete:
            self.finish(work, FinishReason.STOP)  # only an end-of-sequence token could follow
        elif sequence.is_full:
            self.finish(work, FinishReason.LENGTH)

    def finish(self, work: Work, reason: FinishReason) -> None:
        """Ends a sequence and tells it, unless it has ended before."""
        outcome = "aborted" if reason is FinishReason.ABORTED else "finished"
        if self._intake.end(work, outcome):
            self.tell_end(work, reason)

    def tell_end(self, work: Work, reason: FinishReason) -> None:
        """Sends the terminal event of a sequence that has ended as it should, or was aborted."""
        outcome = "aborted" if reason is FinishReason.ABORTED else "finished"
        end = self._end(work, outcome, reason)
        self._observers.ended(end)
        self.tell(
            work,
            FinishedEvent(
                reason,
                num_prompt_tokens=end.num_prompt_tokens,
                num_completion_tokens=end.num_completion_tokens,
                timings=end.timings,
                prompt_logprobs=_of_prompt(work),
                end_logprob=work.end_logprob,
                num_cached_tokens=work.sequence.num_cached_tokens,
            ),
        )

    def fail(self, works: Sequence[Work], fault: Exception, doing: str) -> None:
        """Ends sequences with the error of a fault that came while `doing` something for them."""
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
        clear_frames(error)  # whoever is told keeps it as long as it likes
        for work in works:
            if self._intake.end(work, "failed"):
                self.tell_fault(work, error)

    def tell_fault(self, work: Work, error: TwostrokeError) -> None:
        """Sends the terminal event of a sequence that has ended with an error."""
        self._observers.ended(self._end(work, "failed", None))
        self.tell(work, FailedEvent(error))

    def tell_progress(self, work: Work, num_read: int, num_ahead: int | None = None) -> None:
        """Sends how far a prompt has come, to those that ask for it."""
        if work.reports_progress:
            num_prompt, num_cached = len(work.sequence.prompt_ids), work.sequence.num_cached_tokens
            self.tell(work, ProgressEvent(num_prompt, num_cached, num_read, num_ahead))

    def tell(self, work: Work, event: Event) -> bool:
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


def _of_prompt(work: Work, index: int = 0) -> tuple[TokenLogprob | None, ...]:
    """What was asked for of the prompt; it goes with the first token of the answer."""
    return () if index or work.prompt_logprobs is None else work.prompt_logprobs.found


def _logprob(work: Work, token_id: TokenId, row: Callable[[], Logits]) -> TokenLogprob | None:
    num_top = work.sampler.params.logprobs
    return None if num_top is None else token_logprob(row(), token_id, num_top)
