"""The engine thread: one step after the other, until the engine is stopped and empty."""

from __future__ import annotations

import threading

from twostroke.engine.intake import Intake
from twostroke.engine.runner import Runner
from twostroke.engine.stepper import Stepper
from twostroke.engine.upkeep import Upkeep


class StepLoop:
    """Owns the engine thread, and what happens where a step fails as a whole."""

    def __init__(self, intake: Intake, runner: Runner, stepper: Stepper) -> None:
        self._intake = intake
        self._stepper = stepper
        self._upkeep = Upkeep(intake, runner, stepper)
        self._thread: threading.Thread | None = None
        self._has_failed = False  # the last step, by a fault of the engine itself

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the engine thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Starts the thread. A daemon, so that a forgotten engine never keeps a program alive."""
        self._thread = threading.Thread(target=self._serve, name="twostroke", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Returns when the last step was run; the intake must be closed. Not in the thread."""
        if self._thread is None:
            self._serve()  # never started: tell those who wait that it is over
        else:
            self._thread.join()

    def run_step(self) -> bool:
        """Waits for work and runs one step; False once closed and empty. See `Engine.run_step`."""
        step = None
        try:
            step = self._intake.next_step()
            if step is not None:
                self._stepper.run(step)
                self._upkeep.give_back(step.tails)
                if step.rest is not None:
                    self._upkeep.shrink()
                    self._upkeep.prove(step.rest)
        except Exception as fault:
            # A fault of the engine itself: end all that it may have hurt. Where the next step
            # fails as well, going on would fail for ever.
            if self._has_failed or (step is not None and step.rest is not None):
                raise
            self._has_failed = True
            self._stepper.fail_all(fault)
            return True
        self._has_failed = False
        return step is not None

    def _serve(self) -> None:
        try:
            while self.run_step():
                pass
        except Exception as fault:
            self._stepper.abandon_all(fault)
