"""Runs the copies of a plan: prefixes from row to row, before the prompts behind them are read."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twostroke.engine.intake import Intake
from twostroke.engine.prefixes import RowCopy
from twostroke.engine.runner import Runner
from twostroke.engine.sequence import Sequence
from twostroke.errors import EngineError

log = logging.getLogger(__name__)


def run_copies(
    copies: Iterable[RowCopy], runner: Runner, intake: Intake
) -> list[tuple[Sequence, Exception]]:
    """Copies in order; answers the sequences that lack their prefix now, and why.

    What a failed copy should have filled is forgotten, and so is what was to be copied from there.
    """
    failed: list[tuple[Sequence, Exception]] = []
    lost_rows: set[int] = set()
    for copy in copies:
        try:
            if copy.source_row in lost_rows:
                raise EngineError(
                    "The row that a prefix was to be copied from could not be filled."
                )
            runner.copy_row(copy.source_row, copy.target_row, copy.num_tokens)
            lost_rows.discard(copy.target_row)
        except Exception as fault:
            lost_rows.add(copy.target_row)
            intake.forget_row(copy.target_row)
            if copy.sequence is None:
                log.exception("a kept prefix of %d tokens was lost", copy.num_tokens)
            else:
                failed.append((copy.sequence, fault))
    return failed
