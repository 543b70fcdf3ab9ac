"""Follows one answer through its grammar."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke.errors import EngineError
from twostroke.types import TokenId


class Matcher:
    """The state of one answer in its grammar. Not for several threads at once."""

    def __init__(self, native: Any) -> None:
        """Takes over an `llguidance.LLMatcher` at the beginning of its grammar."""
        self._native = native

    @property
    def is_complete(self) -> bool:
        """True where the answer is whole and nothing can follow it."""
        return bool(self._native.is_stopped())

    def allowed(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """Ids that may come next, ascending, below `vocab_size`.

        End-of-sequence ids are among them where the answer may end here.

        Raises:
            EngineError: the grammar is too complex to go on here.
        """
        mask = np.frombuffer(self._native.compute_bitmask(), dtype=np.uint8)
        self._check()
        bits = np.unpackbits(mask, bitorder="little")[:vocab_size]  # [vocab], 1 is allowed
        return np.flatnonzero(bits)

    def accept(self, token_id: TokenId) -> None:
        """Goes on behind a token of the answer.

        Raises:
            EngineError: the token was not allowed.
        """
        self._native.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._native.is_error():
            raise EngineError(
                f"The answer cannot go on in its grammar: {first_line(self._native.get_error())}. "
                "Simplify the grammar or the schema."
            )


def first_line(message: str) -> str:
    """The sentence of a message of llguidance, without the picture of its state."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # A pattern at fault is drawn first, with a caret below it; the reason stands under it.
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (reasons or lines or ["no reason is known"])[0].rstrip(".:")
    return line if len(line) <= 300 else line[:300] + "…"
