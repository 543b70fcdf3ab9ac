"""Runs the transfers of a plan: rows are stored, copied and restored before prompts are read."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twostroke.engine.intake import Intake
from twostroke.engine.prefix_store import PrefixStore
from twostroke.engine.transfers import RowCopy, RowRestore, RowSave, Transfer
from twostroke.engine.watched_runner import WatchedRunner
from twostroke.errors import DeviceLostError, EngineError
from twostroke.life.timeline import Clock

log = logging.getLogger(__name__)


def run_transfers(
    transfers: Iterable[Transfer], runner: WatchedRunner, intake: Intake, clock: Clock
) -> None:
    """Runs them in order. Raises DeviceLostError and nothing else.

    What a failed one should have filled is forgotten, and what was to come from there as well: a
    sequence that lacks its prefix reads its prompt from the start, in the next step.
    """
    lost_rows: set[int] = set()
    for transfer in transfers:
        try:
            began = clock()
            _run(transfer, runner, intake.prefix_store, lost_rows)
            intake.note_transfer(transfer, clock() - began)
            _note_hand_over(transfer, runner, intake)
        except DeviceLostError:
            raise
        except Exception as fault:
            if isinstance(transfer, RowSave):
                log.warning("a prefix of %d tokens was not stored: %s", transfer.num_tokens, fault)
                continue
            log.warning("a prefix of %d tokens was lost: %s", transfer.num_tokens, fault)
            lost_rows.add(transfer.target_row)
            intake.forget_row(transfer.target_row, transfer.sequence)


def close_store(runner: WatchedRunner, intake: Intake) -> None:
    """Stores what is kept if it would survive a restart, and closes the store. Never raises."""
    store = intake.prefix_store
    if store is None:
        return
    for save in intake.kept_rows() if store.survives else ():
        try:
            _run(save, runner, store, set())
            store.flush()
        except Exception as fault:
            log.warning("a prefix of %d tokens was not stored: %s", save.num_tokens, fault)
    store.close()


def _note_hand_over(transfer: Transfer, runner: WatchedRunner, intake: Intake) -> None:
    """A prefix that was copied from the other stroke's cache shows in its sequence's timeline."""
    moved = runner.take_hand_over()
    if moved is not None and isinstance(transfer, RowCopy) and transfer.sequence is not None:
        timeline = intake.work_of(transfer.sequence).timeline
        timeline.add_hand_over(moved.num_bytes, moved.seconds, moved.way)


def _run(
    transfer: Transfer, runner: WatchedRunner, store: PrefixStore | None, lost_rows: set[int]
) -> None:
    if isinstance(transfer, RowSave):
        assert store is not None
        if transfer.row not in lost_rows:
            contents = runner.save_row(transfer.row, transfer.num_tokens)
            store.put(transfer.scope, transfer.ids, contents)
        return
    if isinstance(transfer, RowRestore):
        assert store is not None
        entry = transfer.entry
        contents = store.read(entry)
        runner.restore_row(transfer.target_row, contents, entry.num_tokens, transfer.num_tokens)
    else:
        if transfer.source_row in lost_rows:
            raise EngineError("the row that holds it could not be filled")
        runner.copy_row(transfer.source_row, transfer.target_row, transfer.num_tokens)
    lost_rows.discard(transfer.target_row)
