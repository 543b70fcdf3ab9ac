"""What it costs to copy, store and restore rows of the KV cache, learned from what it took.

Each kind costs so much a token, whatever the row: the memory moved is all there is to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from twostroke.engine.transfers import RowCopy, RowRestore, RowSave, Transfer

_WEIGHT = 0.25  # of a new measurement
_OUTLIER = 4.0  # a measurement counts as at most so many times what was expected
_FIRST_GUESSES_S = {RowCopy: 1e-5, RowSave: 2e-5, RowRestore: 1e-4}  # a token


class TransferCosts:
    """Seconds of transfers to come. Used by the engine's thread."""

    def __init__(self) -> None:
        self._token_s: dict[type[Transfer], float] = dict(_FIRST_GUESSES_S)
        self._seen: set[type[Transfer]] = set()

    def predict_s(self, transfers: Iterable[Transfer]) -> float:
        """Seconds for all of them."""
        return sum(self._token_s[type(each)] * _num_tokens(each) for each in transfers)

    def observe(self, transfer: Transfer, duration_s: float) -> None:
        """Takes in what a transfer took. Mutates the model."""
        kind, expected_s = type(transfer), self._token_s[type(transfer)]
        token_s = duration_s / max(1, _num_tokens(transfer))
        if kind not in self._seen:
            self._seen.add(kind)
            self._token_s[kind] = token_s
        else:
            self._token_s[kind] += _WEIGHT * (min(token_s, _OUTLIER * expected_s) - expected_s)


def _num_tokens(transfer: Transfer) -> int:
    """Of an entry that is restored all is read, however little of it is wanted."""
    if isinstance(transfer, RowRestore):
        return transfer.entry.num_tokens
    return transfer.num_tokens
