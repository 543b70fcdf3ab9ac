"""Grows the KV cache for a step and shrinks it in idle moments, on devices.

A device may refuse although the memory plan has room: others use it too. Then kept rows go for
those who begin; where there are none, the largest of those fails, and nobody else notices.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from twostroke.engine.answers import Answers
from twostroke.engine.intake import Intake
from twostroke.engine.kv_extent import Extent
from twostroke.engine.plan import Plan
from twostroke.engine.transfers import RowCopy, RowSave, Transfer
from twostroke.engine.watched_runner import WatchedRunner
from twostroke.errors import DeviceLostError, OutOfMemoryError, UnavailableError

log = logging.getLogger(__name__)


def make_room(plan: Plan, runner: WatchedRunner, intake: Intake, answers: Answers) -> Plan:
    """Grows the cache as a plan wants; answers what of the plan can be run then.

    Where the device refuses, kept rows are stored and given up, or else the largest that begins
    fails; what has no room otherwise is planned anew in the next step.

    Raises:
        DeviceLostError: and nothing else.
    """
    if not plan.extents:
        return plan
    lengths = _lengths(intake.row_lengths(), plan.copies)
    fault = None
    for extent in plan.extents:
        fault = _resize(runner, extent, lengths)
        if fault is None:
            intake.note_extent(runner.extent)
            return plan
    assert fault is not None
    culprit, saves = intake.note_refusal(runner.extent)
    if culprit is not None:
        answers.fail([culprit], fault, "make room in the KV cache")
    chunks = tuple(chunk for chunk in plan.prefill if chunk.sequence.row == chunk.row)
    copies = [copy for copy in plan.copies if _is_wanted(copy, runner.extent)]
    return replace(plan, prefill=chunks, copies=(*copies, *saves))


def shrink(runner: WatchedRunner, intake: Intake) -> None:
    """Gives back what the cache has not needed for a while. Raises as `make_room`."""
    extent = intake.idle_extent()
    if extent is None:
        return
    fault = _resize(runner, extent, intake.row_lengths())
    if fault is not None:
        log.warning("the KV cache stays as large as it is: %s", fault)
    intake.note_extent(runner.extent)


def _resize(runner: WatchedRunner, extent: Extent, lengths: Sequence[int]) -> Exception | None:
    """Why it failed, for those who are told; without the frames, which hold on to arrays."""
    try:
        runner.resize(extent, lengths)
    except OutOfMemoryError as refusal:
        return UnavailableError(
            f"The device has no memory left for this request: {refusal} Requests that run go on. "
            f"Try again later, ask for fewer max_tokens, or lower kv.budget to what the device has."
        )
    except DeviceLostError:
        raise
    except Exception as fault:
        return fault.with_traceback(None)
    return None


def _lengths(lengths: Sequence[int], copies: Sequence[Transfer]) -> list[int]:
    """What rows hold until the copies were made: some are free or another's in the books by now."""
    held = list(lengths)
    for transfer in copies:
        if isinstance(transfer, RowCopy):
            held[transfer.source_row] = max(held[transfer.source_row], transfer.num_tokens)
        elif isinstance(transfer, RowSave):
            held[transfer.row] = max(held[transfer.row], transfer.num_tokens)
    return held


def _is_wanted(transfer: Transfer, extent: Extent) -> bool:
    if isinstance(transfer, RowSave):
        return True
    if transfer.sequence is not None:
        return transfer.sequence.row == transfer.target_row
    return transfer.target_row < extent.num_rows
