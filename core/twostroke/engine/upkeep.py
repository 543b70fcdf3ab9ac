"""What the engine does when nobody waits: returns memory that is of no use, proves its books.

Memory goes back when the engine has been idle for a while, so that requests that follow each other
do not pay for touching it again; and at once where rows have touched more than the budget, which
old rows can come to together although no sequence breaks its promise. On devices, where all rows
are equally long, the whole cache shrinks when the engine is idle.
"""

from __future__ import annotations

import logging

from twostroke.engine.intake import Intake, Rest, Tails
from twostroke.engine.resizing import shrink
from twostroke.engine.stepper import Stepper
from twostroke.engine.watched_runner import WatchedRunner
from twostroke.life.heap import give_memory_back

log = logging.getLogger(__name__)


class Upkeep:
    """Looks after the KV cache of one engine. Every method runs in the engine thread."""

    def __init__(
        self, intake: Intake, runner: WatchedRunner, stepper: Stepper, *, sessions_keep_rows: bool
    ) -> None:
        self._intake = intake
        self._sessions_keep_rows = sessions_keep_rows
        self._runner = runner
        self._stepper = stepper

    def give_back(self, tails: Tails) -> None:
        """Returns the memory behind the tokens of each row; rows in use keep what they may need."""
        for row, num_tokens in tails:
            if not self._runner.give_back(row, num_tokens):
                log.info("rows keep the memory they touched: this backend cannot return it")
                self._intake.keep_tails()
                return
            self._intake.note_given_back(row, num_tokens)

    def shrink(self) -> None:
        """Makes the cache of a device as small as what is kept in it allows."""
        shrink(self._runner, self._intake)

    def trim(self) -> None:
        """Returns what sessions freed while the rows that they keep copies of grew."""
        if self._sessions_keep_rows:
            give_memory_back()

    def prove(self, rest: Rest) -> None:
        """Checks all books while nothing runs. Where they are wrong, starts over with empty ones.

        Whoever still waits then fails, rows that were kept are forgotten, and the engine serves on.

        Raises:
            AssertionError: the fresh books are wrong as well.
        """
        try:
            self._check()
            if rest.num_forgotten:
                raise AssertionError(f"{rest.num_forgotten} requests wait and nothing is to be run")
        except Exception as violation:
            log.critical(
                "the engine is idle and its books are wrong (%s): every row is freed, and what "
                "still waits fails. Please report this with the log.",
                violation,
                exc_info=violation,
            )
            self._stepper.start_over(violation)
            self._check()

    def _check(self) -> None:
        self._intake.check()
        self._runner.check(self._intake.row_lengths())
