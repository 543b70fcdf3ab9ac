"""What one step of the engine does; decided by the scheduler, done by the stepper."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.engine.kv_extent import Extent
from twostroke.engine.sequence import Sequence
from twostroke.engine.transfers import Transfer
from twostroke.types import TokenId


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, start + len(token_ids)) of one sequence, for its row."""

    sequence: Sequence
    row: int
    start: int
    token_ids: tuple[TokenId, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One run of the decode graph over rows [start, start + len(sequences)).

    `sequences[i]` is the one in row `start + i`, None where that row must not decode.
    """

    start: int
    sequences: tuple[Sequence | None, ...]


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The newest token of a decoding sequence and its draft, for positions from `start` of its row.

    As many of them enter the row as turn out to be what the sequence says.
    """

    sequence: Sequence
    row: int
    start: int
    token_ids: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does: copies of prefixes in their order, prompt chunks, decode batches, drafts.

    A sequence whose draft is verified is in no decode batch of the same step. Before all of that
    the KV cache gets room for the first of `extents` that the device has memory for; none: it has.
    """

    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[DecodeBatch, ...] = ()
    copies: tuple[Transfer, ...] = ()
    verify: tuple[VerifyRun, ...] = ()
    extents: tuple[Extent, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode or self.verify)
