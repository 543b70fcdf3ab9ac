"""What the reuse of prefixes has come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twostroke.engine.sequence import Sequence
from twostroke.engine.transfers import RowCopy, RowRestore, Transfer


@dataclass(slots=True)
class PrefixCounts:
    """Sums since the start."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of those: not computed
    num_hits: int = 0  # prompts that were not computed whole
    num_copied_tokens: int = 0  # from row to row
    num_restored_tokens: int = 0  # from the store

    def add(self, sequence: Sequence, transfers: Iterable[Transfer]) -> None:
        """Counts a sequence that got its row, and what that took. Mutates the sums."""
        self.num_prompt_tokens += len(sequence.prompt_ids)
        self.num_cached_tokens += sequence.num_cached_tokens
        self.num_hits += sequence.num_cached_tokens > 0
        for transfer in transfers:
            if isinstance(transfer, RowCopy):
                self.num_copied_tokens += transfer.num_tokens
            elif isinstance(transfer, RowRestore):
                self.num_restored_tokens += transfer.num_tokens
