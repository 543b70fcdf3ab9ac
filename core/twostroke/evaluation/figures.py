"""What logits over a text tell: perplexity, and how near they are to the source's.

Perplexity is exp of the mean negative log-likelihood (Jelinek et al. 1977). The divergence is
KL(source || measured), Kullback and Leibler 1951, in nats, averaged over the scored positions:
unlike perplexity it cannot be better by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twostroke.errors import EngineError
from twostroke.evaluation.windows import Window
from twostroke.evaluation.yardstick import Yardstick
from twostroke.types import TokenId

Logits = npt.NDArray[np.float32]
Score = Callable[[Window], Iterable[Logits]]
"""A window -> pieces of its logits, [piece, vocab] each: one row for every scored token, the
distribution that predicts it. A piece may be overwritten when the next one is asked for."""

_MAX_NLL = 700.0  # nats; exp would overflow a little later
_ROWS = 32  # bounds the float64 temporaries to some 50 MB at a vocabulary of 50,000


@dataclass(frozen=True, slots=True)
class Figures:
    """`mean_kl` (nats) and `top1_agreement` (0 to 1) are None where nothing was compared."""

    num_tokens: int
    perplexity: float
    mean_kl: float | None = None
    top1_agreement: float | None = None


def measure(
    score: Score,
    windows: Sequence[Window],
    *,
    source: Yardstick | None = None,
    keep: Yardstick | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Figures:
    """Runs `score` over every window.

    `source` holds the logits to compare with; `keep` is where this run's own logits go.

    Raises:
        EngineError: logits that are no finite numbers; and what `score` raises.
    """
    tally = _Tally()
    num_tokens = sum(window.num_scored for window in windows)
    for window in windows:
        position = window.num_context
        for logits in score(window):  # [piece, vocab]
            for start in range(0, len(logits), _ROWS):
                rows = logits[start : start + _ROWS]
                if keep is not None:
                    keep.append(rows)
                theirs = None if source is None else source.rows(tally.num_tokens, len(rows))
                tally.add(rows, window.ids[position : position + len(rows)], theirs)
                position += len(rows)
            on_progress(tally.num_tokens / num_tokens)
    return tally.figures(is_compared=source is not None)


class _Tally:
    """Sums over the positions so far."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._nll = 0.0
        self._kl = 0.0
        self._num_same = 0

    def add(self, mine: Logits, ids: Sequence[TokenId], theirs: Logits | None) -> None:
        """`mine` and `theirs` are [rows, vocab], each row predicting the id of its place."""
        log_q = log_softmax(mine)
        self.num_tokens += len(ids)
        self._nll -= float(log_q[np.arange(len(ids)), list(ids)].sum())
        if theirs is not None:
            log_p = log_softmax(theirs)
            self._kl += float((np.exp(log_p) * (log_p - log_q)).sum())
            self._num_same += int((mine.argmax(-1) == theirs.argmax(-1)).sum())

    def figures(self, *, is_compared: bool) -> Figures:
        mean_nll = self._nll / self.num_tokens
        if not math.isfinite(mean_nll):
            raise EngineError(
                "The graph answered logits that are no finite numbers, so nothing can be measured. "
                "Check the bundle with `twostroke verify`, or try another precision."
            )
        perplexity = math.exp(min(mean_nll, _MAX_NLL))
        if not is_compared:
            return Figures(self.num_tokens, perplexity)
        return Figures(
            self.num_tokens,
            perplexity,
            # Rounding may take a divergence of zero below it.
            mean_kl=max(0.0, self._kl / self.num_tokens),
            top1_agreement=self._num_same / self.num_tokens,
        )


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """[rows, vocab] -> the same shape, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
