"""Log-probabilities under the model's own distribution: the softmax of its logits as they are.

Temperature, penalties, bias and grammars change which token is drawn, not what is reported, as
OpenAI means `logprobs`. Sums are in float64: float32 loses digits over a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from twostroke.engine.filters import top_positions
from twostroke.errors import EngineError
from twostroke.types import TokenId, TokenLogprob

Logits = npt.NDArray[np.float32]


def token_logprob(logits: Logits, token_id: TokenId, num_top: int) -> TokenLogprob:
    """Of `token_id` and of the `num_top` most likely tokens, under one row `logits`, [vocab]."""
    peak = logits.max()
    total = np.exp(logits - peak).sum(dtype=np.float64)
    log_total = float(peak) + float(np.log(total))
    top: tuple[tuple[TokenId, float], ...] = ()
    if num_top:
        ids = top_positions(logits, min(num_top, logits.shape[0]))  # [num_top]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        top = tuple((int(each), float(logits[each]) - log_total) for each in ids)
    return TokenLogprob(token_id, float(logits[token_id]) - log_total, top)


class PromptLogprobs:
    """The log-probabilities of a prompt's tokens, gathered chunk by chunk as it is read."""

    def __init__(self, prompt_ids: Sequence[TokenId], num_top: int) -> None:
        self._prompt_ids = prompt_ids
        self._num_top = num_top
        self._found: list[TokenLogprob | None] = [None]  # nothing stands before the first

    def add(self, start: int, logits: Logits) -> None:
        """Takes what follows the tokens from `start` on, [num_tokens, vocab]. Mutates self.

        Raises:
            EngineError: a row is no distribution.
        """
        if start + 1 != len(self._found):
            raise ValueError(f"chunks must follow each other; {start} comes too early or too late")
        if not np.isfinite(logits.max(axis=1)).all():
            raise EngineError(
                "The graph answered logits that are no finite numbers, so the prompt cannot be "
                "scored. Check the bundle with `twostroke verify`, or try another precision."
            )
        following = self._prompt_ids[start + 1 : start + 1 + logits.shape[0]]
        for row, token_id in enumerate(following):
            self._found.append(token_logprob(logits[row], token_id, self._num_top))

    @property
    def found(self) -> tuple[TokenLogprob | None, ...]:
        """One for each token so far; None for the first, which nothing predicts."""
        return tuple(self._found)
