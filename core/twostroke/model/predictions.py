"""How much of what was predicted an answer says."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from twostroke.types import TokenId

MAX_TOKENS = 2**13
"""Of a prediction so many are looked at; a longer one is cut."""


class Prediction:
    """What an answer is expected to say. Immutable; making one takes a microsecond a token."""

    def __init__(self, ids: Sequence[TokenId]) -> None:
        self.ids = tuple(ids[:MAX_TOKENS])
        # Behind each pair of neighbours: where the token after it stands, ascending.
        self.behind: defaultdict[tuple[TokenId, TokenId], list[int]] = defaultdict(list)
        for position in range(2, len(self.ids)):
            self.behind[self.ids[position - 2], self.ids[position - 1]].append(position)


class PredictionTally:
    """Reads an answer beside a prediction of it, token by token.

    The answer is followed through the prediction; where it departs from it, it is found again by
    its last two tokens, further on. `num_accepted` counts the tokens that the prediction said
    rightly, whether a guess was made of them or not.
    """

    def __init__(self, prediction: Prediction) -> None:
        self.num_accepted = 0
        self._prediction = prediction
        self._next = 0  # the position of what should come next
        self._is_lost = False
        self._last: TokenId | None = None

    @property
    def num_rejected(self) -> int:
        """Tokens of the prediction that the answer has not said so far."""
        return len(self._prediction.ids) - self.num_accepted

    def add(self, token_id: TokenId) -> None:
        """Takes the next token of the answer. Mutates self."""
        ids = self._prediction.ids
        is_known = not self._is_lost and self._next < len(ids)
        if is_known and ids[self._next] == token_id:
            self.num_accepted += 1
            self._next += 1
        else:
            self._find(token_id)
        self._last = token_id

    def _find(self, token_id: TokenId) -> None:
        self._is_lost = True
        if self._last is None:
            return
        places = self._prediction.behind.get((self._last, token_id), [])
        further = bisect_left(places, self._next)
        if further < len(places):
            self._next, self._is_lost = places[further], False
