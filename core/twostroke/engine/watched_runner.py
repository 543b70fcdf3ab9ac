"""The runner as the engine thread sees it: watched, judged, and replaced when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from twostroke.backends.protocol import Placement
from twostroke.engine.handover import HandOver
from twostroke.engine.health import EngineHealth
from twostroke.engine.kv_extent import Extent
from twostroke.engine.logits import Logits
from twostroke.engine.prefix_store import Contents
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.run_bounds import RunBounds
from twostroke.engine.runner import Runner
from twostroke.engine.watch import RunWatch, WatchedRun
from twostroke.errors import DeviceLostError, EngineError, HungRunError, OutOfMemoryError
from twostroke.types import Stroke, TokenId

MAX_FAILURES_IN_A_ROW = 3
"""So many runs that fail with none between them that works are not the fault of a request."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WatchedRunner:
    """Passes calls on to the runner inside. Called by one thread at a time, but for `interrupt`.

    What raises is counted. A run that fails is the end of those it served and of no others, for it
    wrote to no other row; but where the device says that it is lost, or nothing works any more,
    DeviceLostError is raised instead. A run that comes back after it was given up ends its thread
    (GivenUp).
    """

    def __init__(
        self, runner: Runner, watch: RunWatch, bounds: RunBounds, health: EngineHealth
    ) -> None:
        self._runner: Runner | None = runner
        self._watch = watch
        self._bounds = bounds
        self._health = health
        self._num_failed_in_a_row = 0
        self.vocab_size = runner.vocab_size
        self.placements: Mapping[Stroke, Placement] = dict(runner.placements)
        self._traits = _traits(runner)

    @property
    def inner(self) -> Runner:
        """The runner.

        Raises:
            DeviceLostError: it was lost, and there is no new one yet.
        """
        if self._runner is None:
            raise DeviceLostError("The sessions are closed, and no new ones are open yet.")
        return self._runner

    def prefill(
        self, row: int, start: int, token_ids: Sequence[TokenId], *, is_last: bool
    ) -> Logits:
        """See `Runner.prefill`."""
        bound_s = self._bounds.prompt_s(len(token_ids), start)
        return self._run(bound_s, self.inner.prefill, row, start, token_ids, is_last=is_last)

    def decode(
        self, start_row: int, token_ids: Sequence[TokenId], past_lengths: Sequence[int]
    ) -> Logits:
        """See `Runner.decode`."""
        bound_s = self._bounds.decode_s()
        return self._run(bound_s, self.inner.decode, start_row, token_ids, past_lengths)

    @property
    def replays_decode(self) -> bool:
        """See `Runner.replays_decode`."""
        return self.inner.replays_decode

    @property
    def reduces_logits(self) -> bool:
        """See `Runner.reduces_logits`."""
        return self.inner.reduces_logits

    def decode_reduced(
        self,
        start_row: int,
        token_ids: Sequence[TokenId],
        past_lengths: Sequence[int],
        inverse_temperatures: Sequence[float],
    ) -> ReducedLogits:
        """See `Runner.decode_reduced`."""
        bound_s = self._bounds.decode_s()
        run = self.inner.decode_reduced
        return self._run(bound_s, run, start_row, token_ids, past_lengths, inverse_temperatures)

    def score(self, row: int, start: int, token_ids: Sequence[TokenId]) -> Logits:
        """See `Runner.score`."""
        # Perhaps one decode run a token.
        bound_s = self._bounds.prompt_s(len(token_ids), start) + self._bounds.decode_s()
        return self._run(bound_s, self.inner.score, row, start, token_ids)

    def verify(self, row: int, start: int, token_ids: Sequence[TokenId]) -> Logits:
        """See `Runner.verify`."""
        bound_s = self._bounds.prompt_s(len(token_ids), start)
        return self._run(bound_s, self.inner.verify, row, start, token_ids)

    def copy_row(self, source_row: int, target_row: int, num_tokens: int) -> None:
        """See `Runner.copy_row`."""
        self._call(self.inner.copy_row, source_row, target_row, num_tokens)

    def take_hand_over(self) -> HandOver | None:
        """See `Runner.take_hand_over`."""
        return self.inner.take_hand_over()

    def save_row(self, row: int, num_tokens: int) -> Contents:
        """See `Runner.save_row`."""
        return self._call(self.inner.save_row, row, num_tokens)

    def restore_row(self, row: int, contents: Contents, num_stored: int, num_tokens: int) -> None:
        """See `Runner.restore_row`."""
        self._call(self.inner.restore_row, row, contents, num_stored, num_tokens)

    def give_back(self, row: int, num_tokens: int) -> bool:
        """See `Runner.give_back`."""
        return self._call(self.inner.give_back, row, num_tokens)

    def check(self, lengths: Sequence[int]) -> None:
        """See `Runner.check`."""
        self.inner.check(lengths)

    @property
    def extent(self) -> Extent:
        """See `Runner.extent`."""
        return self.inner.extent

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """See `Runner.resize`."""
        self._call(self.inner.resize, extent, lengths)

    def interrupt(self) -> bool:
        """Ends the run in progress, which nobody waits for, where the backend can; any thread."""
        return self._watch.interrupt(self._interrupt)

    def look(self) -> WatchedRun | None:
        """Interrupts a run that takes too long; one that is given up is answered. Any thread."""
        return self._watch.look(self._interrupt)

    def take(self, runner: Runner) -> None:
        """Has a new runner inside, and tries it.

        Raises:
            EngineError: it fails, or is not like the one before.
        """
        self._runner = runner
        self.placements = dict(runner.placements)
        self._num_failed_in_a_row = 0
        if _traits(runner) != self._traits:
            raise EngineError("The new sessions cannot do what the ones before could.")
        prompt_ids = (0, 1 % self.vocab_size)
        self._expect_finite(self.prefill(0, 0, prompt_ids, is_last=True))
        self._expect_finite(self.decode(0, prompt_ids[:1], (len(prompt_ids),)))

    def close(self) -> None:
        """Frees the runner inside; doing so twice is harmless."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def forget(self) -> None:
        """Lets go of the runner inside without freeing it, because it is still running."""
        self._runner = None

    def _interrupt(self) -> bool:
        return self._runner is not None and self._runner.interrupt()

    # Below a function and its arguments are passed, no closure: the frames of a run that failed
    # are cleared (`Recovery`), but each keeps the function it runs, and a closure keeps the runner.

    def _call(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        """Watches a call that is no run of a graph."""
        run = self._watch.begin(self._bounds.decode_s(), self.inner.close)
        try:
            return function(*arguments, **keywords)
        finally:
            self._watch.end(run)

    def _run(
        self,
        bound_s: float,
        function: Callable[_P, _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        run = self._watch.begin(bound_s, self.inner.close)
        try:
            logits = function(*arguments, **keywords)
        except Exception as fault:
            self._watch.end(run)
            judged = self._judged(fault, run)
            if judged is fault:
                raise
            raise judged from fault
        self._watch.end(run)
        self._num_failed_in_a_row = 0
        self._health.note_answer()
        return logits

    def _judged(self, fault: Exception, run: WatchedRun) -> Exception:
        """What a run that failed means. Counts it."""
        if run.is_cut:
            fault = HungRunError(
                f"A run took longer than {run.allowed_s:.3g} s and was interrupted. Send the "
                f"request again; where runs need more time, raise recovery.watchdog_s."
            )
        elif run.is_unwanted:
            return fault
        self._health.note_failure(kind_of(fault))
        self._num_failed_in_a_row += 1
        if isinstance(fault, DeviceLostError) or self._num_failed_in_a_row < MAX_FAILURES_IN_A_ROW:
            return fault
        return DeviceLostError(
            f"{self._num_failed_in_a_row} runs in a row failed, the last one with: {fault}"
        )

    def _expect_finite(self, logits: Logits) -> None:
        if not np.isfinite(logits.max()):  # [1, vocab]
            raise EngineError("The new sessions answer logits that are no finite numbers.")


def kind_of(fault: BaseException) -> str:
    """The kind of failure, as metrics count it."""
    if isinstance(fault, DeviceLostError):
        return "device_lost"
    if isinstance(fault, HungRunError):
        return "hang"
    return "memory" if isinstance(fault, MemoryError | OutOfMemoryError) else "run"


def _traits(runner: Runner) -> tuple[object, ...]:
    """What the scheduler was made for."""
    return runner.vocab_size, runner.max_span_rows, runner.chunks_prompts, runner.decodes_alone
