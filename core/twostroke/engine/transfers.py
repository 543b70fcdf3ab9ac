"""What a plan has done with rows before anything is computed: values only."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.engine.prefix_store import StoredPrefix
from twostroke.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class RowCopy:
    """The first tokens of a row, to be copied to another one.

    `sequence` goes on behind them; None where a kept row makes room.
    """

    source_row: int
    target_row: int
    num_tokens: int
    sequence: Sequence | None


@dataclass(frozen=True, slots=True)
class RowSave:
    """A kept row that will be overwritten, to be stored before that."""

    row: int
    num_tokens: int
    scope: str
    ids: bytes


@dataclass(frozen=True, slots=True)
class RowRestore:
    """The first tokens of what was stored, to be written to a row that `sequence` goes on in."""

    entry: StoredPrefix
    target_row: int
    num_tokens: int
    sequence: Sequence


Transfer = RowCopy | RowSave | RowRestore
