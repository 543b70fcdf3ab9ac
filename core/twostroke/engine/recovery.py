"""What the engine does about lost sessions: ends what they served, and gets new ones."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from twostroke.engine.answers import Answers
from twostroke.engine.frames import clear_frames
from twostroke.engine.health import EngineHealth
from twostroke.engine.intake import Intake
from twostroke.engine.runner import Runner
from twostroke.engine.watched_runner import WatchedRunner, kind_of

log = logging.getLogger(__name__)


class Reopen(Protocol):
    """Opens the sessions of an engine anew."""

    def __call__(self, *, is_hung: bool) -> Runner:
        """A runner like the one before, which was closed, unless `is_hung`: then it is still
        there, and its memory is taken.

        Raises:
            TwostrokeError: not now, or never.
        """
        ...


class Recovery:
    """Called in the engine thread, `lose` in the watchdog's too where the engine thread hangs."""

    def __init__(
        self,
        intake: Intake,
        answers: Answers,
        runner: WatchedRunner,
        health: EngineHealth,
        reopen: Reopen | None,
    ) -> None:
        self._intake = intake
        self._answers = answers
        self._runner = runner
        self._reopen = reopen
        self._is_hung = False  # a run on the present sessions
        self.health = health

    def lose(self, fault: Exception) -> None:
        """Ends everything in flight after a fault that nothing on the sessions survives.

        Closes the runner, so that its memory is free before a new one is made.
        """
        self._end_all(fault)
        self._close(fault)

    def lose_thread(self, thread: threading.Thread, fault: Exception) -> None:
        """As `lose`, where a thread hangs in a run, with the runner, which stays open.

        A second one at a time is the end: each takes memory, and what hangs on new sessions too
        is not mended by others.
        """
        is_first = not self.health.num_hung_threads
        self.health.note_hung(thread)
        self.health.note_failure(kind_of(fault))
        self._is_hung = True
        self._runner.forget()
        self._end_all(fault, may_try=is_first)

    def try_again(self) -> bool:
        """Waits for the time of the next try and opens new sessions; False once closed."""
        if self._intake.wait_until_closed(self.health.pause_s):
            return False
        assert self._reopen is not None  # or there would have been nothing to wait for
        self.health.begin_try()
        is_hung, self._is_hung = self._is_hung, False
        try:
            runner = self._reopen(is_hung=is_hung)
            if self._intake.wait_until_closed(0.0):
                runner.close()
                return False
            self._runner.take(runner)
        except Exception as fault:
            log.exception("new sessions could not be opened")
            self._close(fault)
            self.health.note_failed_try(_sentence(fault))
            self._tell_state()
            return True
        self._intake.resume()
        self.health.recover()
        log.warning("new sessions are open: the model is ready again")
        return True

    def give_up(self, fault: Exception) -> None:
        """The engine has stopped after a fault of its own."""
        self.health.give_up(_sentence(fault))

    def _end_all(self, fault: Exception, *, may_try: bool = True) -> None:
        log.error("the sessions are lost: %s", fault, exc_info=fault)
        if self._reopen is None or not may_try:
            self.health.give_up(_sentence(fault))
        else:
            self.health.lose(_sentence(fault))
        self._tell_state()
        for work in self._intake.start_over(self.health.refusal):
            self._answers.tell_fault(work, self.health.loss())

    def _close(self, fault: BaseException) -> None:
        try:
            self._runner.close()
        except Exception:
            log.exception("the lost sessions could not be closed")
        clear_frames(fault)

    def _tell_state(self) -> None:
        pause_s = self.health.pause_s
        if pause_s is None:
            log.critical("this model is given up: restart the server")
        else:
            log.warning("the next try is in %.1f s", pause_s)


def _sentence(fault: BaseException) -> str:
    """A fault without the dot at its end, for the middle of a sentence."""
    return (str(fault) or type(fault).__name__).strip().rstrip(".")
