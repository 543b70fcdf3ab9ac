"""The engine of one model: takes requests from any thread, serves them in a thread of its own."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from twostroke.backends.protocol import Placement
from twostroke.engine.deadlines import earliest_deadline
from twostroke.engine.health import Health
from twostroke.engine.intake import IDLE_AFTER_S, Intake, Sink, Work
from twostroke.engine.limits import DEFAULT_RECOVERY, EngineStats, RecoveryLimits
from twostroke.engine.logprobs import PromptLogprobs
from twostroke.engine.loop import StepLoop
from twostroke.engine.prompt_checks import check_prompt
from twostroke.engine.recovery import Reopen
from twostroke.engine.run_transfers import close_store
from twostroke.engine.runner import Runner
from twostroke.engine.sampler import SamplerState
from twostroke.engine.scheduler import Scheduler
from twostroke.engine.sequence import check_length, sequence_for
from twostroke.errors import RequestError
from twostroke.grammar import Grammars, Matcher
from twostroke.life.memory import MemoryPlan
from twostroke.life.observe import Observers
from twostroke.life.roofline import Bounds
from twostroke.life.timeline import Clock, Timeline
from twostroke.timings import Preparation
from twostroke.types import Constraint, Request, Stroke, TokenId

NOT_PREPARED = Preparation()


class Engine:
    """Owns the step thread, the runner and the scheduler of one model.

    `context_tokens` bounds prompt and answer together, `memory_plan` says what the KV cache may
    take; `bundle_context_tokens` is what the context could be at most. The end-of-sequence token
    of an answer is counted in `num_completion_tokens`, as OpenAI counts it, but no TokenEvent is
    sent for it; the same holds for a request's `stop_ids`. `reopen` makes new sessions where those
    of `runner` are lost; without it the engine then serves no more.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        context_tokens: int,
        eos_ids: frozenset[TokenId],
        memory_plan: MemoryPlan,
        bundle_context_tokens: int | None = None,
        grammars: Grammars | None = None,
        bounds: Bounds | None = None,
        request_timeout_s: float | None = None,
        clock: Clock = time.monotonic,
        idle_after_s: float = IDLE_AFTER_S,
        recovery: RecoveryLimits = DEFAULT_RECOVERY,
        reopen: Reopen | None = None,
    ) -> None:
        self.context_tokens = context_tokens
        self.memory_plan = memory_plan
        self._bundle_context_tokens = bundle_context_tokens
        self.vocab_size = runner.vocab_size
        self.hand_over_way = runner.hand_over_way
        self._eos_ids = eos_ids
        self._grammars = grammars
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._scheduler = scheduler
        self._intake = Intake(scheduler, clock, idle_after_s=idle_after_s)
        # Told of each run and each end; add to them before `start`.
        self.observers = Observers([scheduler.budget])
        if scheduler.speculation is not None:
            self.observers.add(scheduler.speculation.costs)
        self._loop = StepLoop(
            self._intake,
            runner,
            self.observers,
            clock,
            bounds=bounds,
            budget=scheduler.budget,
            limits=recovery,
            reopen=reopen,
            sessions_keep_rows=memory_plan.needs.kept_bytes > 0,
        )
        self._stepper = self._loop.stepper
        self._life = threading.Lock()  # start and stop, one at a time
        self._is_stopped = False

    def start(self) -> None:
        """Starts the step thread. Starting twice, or after a stop, does nothing."""
        with self._life:
            if self._loop.is_started or self._is_stopped:
                return
            atexit.register(self.stop)  # no graph runs while the interpreter is taken down
            self._loop.start()

    def stop(self, *, drain_timeout_s: float = 0.0) -> None:
        """Refuses new requests, lets running ones end for `drain_timeout_s`, aborts the rest.

        Frees the sessions; the backends stay open. Stopping twice is harmless. Called from a
        sink (in the engine thread) it only asks for the end and returns. A run that does not end is
        left behind with its sessions: see `has_hung_threads`.
        """
        self._intake.refuse()
        if self._loop.is_here:
            self._intake.close()
            return
        if self._loop.is_started and drain_timeout_s > 0:
            self._intake.wait_until_empty(drain_timeout_s)
        self._intake.close()
        self._stepper.interruption.interrupt()
        with self._life:
            if self._is_stopped:
                return
            self._is_stopped = True
            is_over = self._loop.finish()
            atexit.unregister(self.stop)
            if is_over:
                close_store(self._loop.runner, self._intake)
                self._loop.runner.close()

    def submit(
        self,
        request: Request,
        sink: Sink,
        *,
        arrived_at: float,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        """Hands a request to the engine; any thread.

        `sink` is called in the engine thread with TokenEvents and exactly one terminal event; it
        must not block. A sink that raises aborts its own sequence only. `arrived_at` is on the
        engine's clock (`time.monotonic`); `prepared` says what was done since.

        Raises:
            RequestError: an empty prompt, an id outside of the vocabulary, a request id in use, a
                constraint that `compile` would refuse.
            ContextLengthError: the prompt leaves no room for an answer.
            UnavailableError: the queue is full, or the engine is stopping.
        """
        self.submit_all((request,), (sink,), arrived_at=arrived_at, prepared=prepared)

    def submit_all(
        self,
        requests: Sequence[Request],
        sinks: Sequence[Sink],
        *,
        arrived_at: float,
        prepared: Preparation = NOT_PREPARED,
    ) -> None:
        """Hands over requests that belong together, e.g. the choices of one HTTP request.

        All of them are taken, or none: then no sink is called. `sinks[i]` gets the events of
        `requests[i]`, as in `submit`; give equal ones the same `group`. `AsyncEvents` and
        `SyncEvents` iterate over what comes. Where prompts begin alike they are read once.

        Raises:
            RequestError, ContextLengthError, UnavailableError: as `submit`; also for more
                requests than rows and queue can ever hold.
        """
        works = [
            self._work_for(request, sink, arrived_at, prepared)
            for request, sink in zip(requests, sinks, strict=True)
        ]
        self._intake.submit_all(works)

    def change_limits(self, *, max_queue: int, request_timeout_s: float | None) -> None:
        """Takes other limits for requests that come from now on; any thread."""
        self._scheduler.max_queue = max_queue
        self._request_timeout_s = request_timeout_s

    @property
    def _runner(self) -> Runner:
        return self._loop.runner.inner

    def _work_for(
        self, request: Request, sink: Sink, arrived_at: float, prepared: Preparation
    ) -> Work:
        # The length first: whoever submits may be an event loop, which ids are not looked at for
        # that lead nowhere.
        check_length(len(request.prompt_ids), self.context_tokens, self._bundle_context_tokens)
        check_prompt(request, self.vocab_size)
        params = request.sampling
        timeline = Timeline(arrived_at, self._clock(), prepared)
        matcher = None if request.constraint is None else self.compile(request.constraint)
        # The end of a grammar is the end of the answer, whatever else is ignored.
        ends = matcher is not None or not params.ignore_eos
        stop_ids = (self._eos_ids if ends else frozenset()) | params.stop_ids
        return Work(
            sequence_for(request, self.context_tokens, self._bundle_context_tokens),
            sink,
            timeline,
            SamplerState(params, request.prompt_ids, stop_ids),
            stop_ids,
            matcher,
            None
            if params.prompt_logprobs is None
            else PromptLogprobs(request.prompt_ids, params.prompt_logprobs),
            deadline_at=earliest_deadline(request.deadline_at, arrived_at, self._request_timeout_s),
            reports_progress=request.reports_progress,
        )

    def compile(self, constraint: Constraint) -> Matcher:
        """Compiles a constraint and keeps it, so that `submit` finds it ready; any thread.

        Takes a few milliseconds, the first time about a second: call it off the event loop.

        Raises:
            RequestError: it is no valid constraint, too large, or cannot be satisfied.
            UnavailableError: too many are being compiled.
        """
        if self._grammars is None:
            raise RequestError("This engine knows no vocabulary, so it cannot constrain answers.")
        return self._grammars.matcher(constraint)

    def abort(self, request_id: str) -> None:
        """Ends a sequence with reason `aborted`, at the latest in the step after the next.

        Any thread; unknown ids are ignored. A chunk of its prompt that is being read is
        interrupted where the backend can; a decode run, which others share, never is.
        """
        self._intake.abort(request_id)
        self._stepper.interruption.interrupt(request_id)

    def stats(self) -> EngineStats:
        """The load right now; any thread."""
        num_interrupted = self._stepper.interruption.num_interrupted
        return replace(self._intake.stats(), num_interrupted_chunks=num_interrupted)

    @property
    def placements(self) -> Mapping[Stroke, Placement]:
        """Where the nodes of each stroke's graph run."""
        return self._loop.runner.placements

    def health(self) -> Health:
        """Whether it is ready, and what it does about it where it is not; any thread."""
        return self._loop.health.snapshot()

    @property
    def has_hung_threads(self) -> bool:
        """Whether a run never came back: backends must stay open, and a program should end by
        `os._exit`, since native code may wait for it otherwise.
        """
        return self._loop.has_hung_threads

    def check(self) -> None:
        """Proves the invariants of scheduler and KV cache. Raises AssertionError."""
        self._intake.check()

    def run_step(self) -> bool:
        """Waits for work and runs one step; False once stopped and empty.

        What the engine's thread calls. Simulations that want to decide when a step happens call
        it themselves, on an engine that was not started. A fault of the engine itself fails
        everything in it; a second one in a row is raised.

        A moment after the last work there is one step that returns memory and proves the books; it
        raises where they are wrong and cannot be set right.
        """
        return self._loop.run_step()
