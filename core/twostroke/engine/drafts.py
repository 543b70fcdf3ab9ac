"""Guesses what a sequence says next: what followed the last time it said the same.

Prompt lookup decoding (Saxena 2023) with the bookkeeping of PAQ's match model (Mahoney 2005): the
last few tokens are looked up in prompt and answer, and in what the client has predicted; while the
copy goes on, its source is followed and the match grows. How long the match is says how far it can
be trusted. Pure Python, a few microseconds a token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from twostroke.types import TokenId

MAX_NGRAM_TOKENS = 4
"""How many of the last tokens are looked up at most; at least two are, the most first."""

MAX_SLOTS = 2**16
"""Of each length's table, 256 KiB; a sequence that is longer forgets by chance what is oldest."""

PREDICTED_MATCH_TOKENS = 16
"""What the beginning of a prediction counts for: whoever sends one has a reason."""

_MULTIPLIER = 0x9E3779B1  # Knuth's multiplicative hashing: 2**32 over the golden ratio


class Drafter:
    """An index of one sequence's tokens. Owns a copy of them and grows by one at a time.

    `match_tokens` is how many of the last tokens are known to have stood before; 0: none. It takes
    4 bytes a token and at most `MAX_SLOTS` x 12 for the tables. A prediction is indexed before the
    sequence and is no part of it.
    """

    def __init__(self, capacity_tokens: int, prediction: Sequence[TokenId] = ()) -> None:
        """`capacity_tokens`: how long sequence and prediction may become; sizes the tables."""
        self.match_tokens = 0
        self._source = 0  # position of the token that followed the match the last time
        self._ids = array("I")
        self._num_skipped = 0
        num_slots = min(MAX_SLOTS, 1 << max(4, (capacity_tokens - 1).bit_length()))
        self._mask = num_slots - 1
        # For n tokens, by their hash: the position behind them where they stood last; 0: none.
        self._tables = {n: array("I", bytes(4 * num_slots)) for n in range(2, MAX_NGRAM_TOKENS + 1)}
        self._tail: list[tuple[int, int]] = []  # n and the slot of the last n tokens, growing
        self._num_predicted = 0  # while the prediction itself is indexed, it is like any other text
        self.extend(prediction)
        self._num_predicted = len(prediction)
        self.match_tokens = 0

    def __len__(self) -> int:
        return self._num_skipped + len(self._ids) - self._num_predicted

    def follow_prediction(self) -> None:
        """The answer is about to begin: the prediction says how, where there is one."""
        if self._num_predicted:
            self._source, self.match_tokens = 0, PREDICTED_MATCH_TOKENS

    def skip(self, num_tokens: int) -> None:
        """Leaves out the first tokens of a sequence; before anything else is added."""
        self._num_skipped = num_tokens

    @property
    def next_token(self) -> TokenId | None:
        """The next token as guessed, None where nothing is known."""
        return self._ids[self._source] if self.match_tokens else None

    def extend(self, token_ids: Iterable[TokenId]) -> None:
        """Adds tokens of the prompt, or some that were not guessed."""
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: TokenId) -> None:
        """Adds the next token of the sequence."""
        ids = self._ids
        for length, slot in self._tail:
            self._tables[length][slot] = len(ids)
        is_right = self.match_tokens > 0 and ids[self._source] == token_id
        is_last = self._source + 1 == self._num_predicted  # the sequence doesn't follow on it
        ids.append(token_id)
        self._tail = self._hash_tail()
        if is_right and not is_last:
            self.match_tokens += 1
            self._source += 1
        else:
            self._look_up()

    def draft(self, max_tokens: int) -> tuple[TokenId, ...]:
        """Up to `max_tokens` tokens that may follow; none where nothing is known.

        What reaches the end of the sequence goes on with the draft itself: a loop is a loop.
        """
        if not self.match_tokens:
            return ()
        if self._source < self._num_predicted:
            end = min(self._source + max_tokens, self._num_predicted)
            return tuple(self._ids[self._source : end])
        guessed: list[TokenId] = list(self._ids[self._source : self._source + max_tokens])
        period = len(self._ids) - self._source
        while len(guessed) < max_tokens:
            guessed.append(guessed[-period])
        return tuple(guessed)

    def _look_up(self) -> None:
        """Finds where the last tokens stood before, the longest match first."""
        ids, end = self._ids, len(self._ids)
        for length, slot in reversed(self._tail):
            source = self._tables[length][slot]
            if (
                source not in (0, self._num_predicted)
                and ids[source - length : source] == ids[end - length :]
            ):
                self._source, self.match_tokens = source, length
                return
        self.match_tokens = 0

    def _hash_tail(self) -> list[tuple[int, int]]:
        ids, end, code = self._ids, len(self._ids), 0
        tail = []
        for length in range(1, min(end, MAX_NGRAM_TOKENS) + 1):
            code = (code * 31 + ids[end - length] + 1) * _MULTIPLIER & 0xFFFFFFFF
            if length > 1:
                tail.append((length, code >> 8 & self._mask))
        return tail
