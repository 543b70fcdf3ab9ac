"""How often guesses are right, by how long the match is that they come from.

Measured on every token that a sequence says, whether its guess was used or not: knowing how good
guesses would be costs no run.
"""

from __future__ import annotations

from bisect import bisect_left

_MATCHES = (2, 3, 4, 8, 16, 32)  # the longest match of each class; one more takes the rest
_PRIORS = (0.25, 0.35, 0.5, 0.7, 0.85, 0.9, 0.95)
_SEQUENCE_WEIGHT = 1 / 8  # of a new observation
_ENGINE_WEIGHT = 1 / 64


class Acceptance:
    """Moving averages, one for each class of match lengths.

    Those of a sequence begin with the engine's, whose averages learn from all sequences.
    """

    def __init__(self, engine: Acceptance | None = None) -> None:
        self._engine = engine
        self._rates: list[float] = list(_PRIORS if engine is None else engine._rates)
        self._weight = _ENGINE_WEIGHT if engine is None else _SEQUENCE_WEIGHT

    def note(self, match_tokens: int, *, is_right: bool) -> None:
        """Notes whether a guess from a match of that length was right."""
        number = bisect_left(_MATCHES, match_tokens)
        self._rates[number] += self._weight * (is_right - self._rates[number])
        if self._engine is not None:
            self._engine.note(match_tokens, is_right=is_right)

    def rate(self, match_tokens: int) -> float:
        """How likely the next guess from a match of that length is right."""
        return self._rates[bisect_left(_MATCHES, match_tokens)]

    def expected_tokens(self, match_tokens: int, num_drafted: int) -> float:
        """Tokens that a verification of a draft brings on average.

        One is sure: the token that the verification chooses itself. Each accepted guess makes the
        match longer by one; see Leviathan et al. 2023, equation 1, for equal rates.
        """
        expected, reached = 1.0, 1.0
        for offset in range(num_drafted):
            reached *= self.rate(match_tokens + offset)
            expected += reached
        return expected
