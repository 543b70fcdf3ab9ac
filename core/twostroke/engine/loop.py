"""The engine thread: one step after the other, until the engine is stopped and empty.

There is always one such thread. Where it hangs in a run that nothing ends, the watchdog gives it
up and starts another one, which opens new sessions.
"""

from __future__ import annotations

import logging
import threading

from twostroke.engine.answers import Answers
from twostroke.engine.health import EngineHealth
from twostroke.engine.intake import Intake
from twostroke.engine.limits import RecoveryLimits
from twostroke.engine.prefill_budget import PrefillBudget
from twostroke.engine.recovery import Recovery, Reopen
from twostroke.engine.run_bounds import RunBounds
from twostroke.engine.runner import Runner
from twostroke.engine.stepper import Stepper
from twostroke.engine.upkeep import Upkeep
from twostroke.engine.watch import GivenUp, RunWatch, Watchdog
from twostroke.engine.watched_runner import WatchedRunner
from twostroke.errors import DeviceLostError, HungRunError
from twostroke.life.observe import Observers
from twostroke.life.roofline import Bounds
from twostroke.life.timeline import Clock

log = logging.getLogger(__name__)


class StepLoop:
    """Owns the engine thread, and what happens where a step fails as a whole."""

    def __init__(
        self,
        intake: Intake,
        runner: Runner,
        observers: Observers,
        clock: Clock,
        *,
        bounds: Bounds | None,
        budget: PrefillBudget,
        limits: RecoveryLimits,
        reopen: Reopen | None,
        sessions_keep_rows: bool,
    ) -> None:
        self._intake = intake
        self.health = EngineHealth(clock, limits.max_tries)
        self._watch = RunWatch(clock, grace_s=limits.grace_s)
        run_bounds = RunBounds(limits.watchdog_s, budget)
        self.runner = WatchedRunner(runner, self._watch, run_bounds, self.health)
        answers = Answers(intake, clock, observers, self.health, bounds)
        self.stepper = Stepper(intake, self.runner, clock, observers, answers)
        self._recovery = Recovery(intake, answers, self.runner, self.health, reopen)
        self._upkeep = Upkeep(
            intake, self.runner, self.stepper, sessions_keep_rows=sessions_keep_rows
        )
        self._thread: threading.Thread | None = None
        self._is_ending = self._is_left_behind = False
        self._watchdog = None
        if limits.watchdog_s is not None:
            period_s = min(limits.grace_s, limits.watchdog_s) / 4
            self._watchdog = Watchdog(self.look_after, period_s)
        self._has_failed = False  # the last step, by a fault of the engine itself

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the engine thread."""
        return threading.current_thread() is self._thread

    @property
    def has_hung_threads(self) -> bool:
        """Whether a thread was left behind in native code, and is there still."""
        thread = self._thread
        is_behind = self._is_left_behind and thread is not None and thread.is_alive()
        return is_behind or self.health.num_hung_threads > 0

    def start(self) -> None:
        """Starts the thread, and the watchdog."""
        self._start_thread()
        if self._watchdog is not None:
            self._watchdog.start()

    def finish(self) -> bool:
        """Returns when the last step was run; the intake must be closed. Not in the thread.

        A run that lasts is interrupted after a time of grace and given up after as long again: then
        its thread is left behind in it, its sessions stay open, and False is answered.
        """
        self._is_ending = True
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._thread is None:
            self._serve()  # never started: tell those who wait that it is over
            return True
        self._thread.join(self._watch.grace_s)
        if self._thread.is_alive():
            self.runner.interrupt()
            self._thread.join(self._watch.grace_s)
        if not self._thread.is_alive():
            return True
        self._is_left_behind = True
        self._watch.give_up()
        self.runner.forget()
        self.stepper.abandon_all(HungRunError("A run does not end: it is left behind."))
        return False

    def run_step(self) -> bool:
        """Waits for work and runs one step; False once closed and empty. See `Engine.run_step`."""
        if not self.health.is_ready:
            return self._recovery.try_again()
        step = None
        try:
            step = self._intake.next_step()
            if step is not None:
                self.stepper.run(step)
                self._upkeep.give_back(step.tails)
                if step.rest is not None:
                    self._upkeep.shrink()
                    self._upkeep.trim()
                    self._upkeep.prove(step.rest)
        except DeviceLostError as loss:
            self._recovery.lose(loss)
            return True
        except Exception as fault:
            # A fault of the engine itself: end all that it may have hurt. Where the next step
            # fails as well, going on would fail for ever.
            if self._has_failed or (step is not None and step.rest is not None):
                raise
            self._has_failed = True
            self.stepper.fail_all(fault)
            return True
        self._has_failed = False
        return step is not None

    def look_after(self) -> None:
        """Interrupts a run that takes too long, and goes on without one that does not come back.

        What the watchdog calls now and then.
        """
        run = self.runner.look()
        if run is None:
            return
        assert self._thread is not None  # in which the run is
        self._recovery.lose_thread(
            self._thread,
            HungRunError(
                f"A run took longer than {run.allowed_s:.3g} s and cannot be interrupted. Its "
                f"thread and its memory are lost until it ends."
            ),
        )
        if not self._is_ending:
            self._start_thread()

    def _start_thread(self) -> None:
        # A daemon, so that a forgotten engine never keeps a program alive.
        self._thread = threading.Thread(target=self._serve, name="twostroke", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while self.run_step():
                pass
            if self._is_left_behind:
                self.runner.close()
        except GivenUp as late:
            log.warning("a run that was given up came back: its thread ends, its memory is free")
            late.release()
        except Exception as fault:
            self._recovery.give_up(fault)
            self.stepper.abandon_all(fault)
