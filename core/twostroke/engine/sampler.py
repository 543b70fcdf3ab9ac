"""Chooses the next token of each row: a function of logits and each sequence's own state.

Order: penalties and bias, temperature, top-k, top-p, min-p, then one uniform random number.
Sources: repetition penalty, Keskar et al. 2019 (CTRL); presence and frequency penalties and
logit bias, OpenAI's API reference; top-k, Fan et al. 2018; top-p (nucleus), Holtzman et al. 2020;
min-p, Nguyen et al. 2024. Top-p sees the distribution that top-k left, renormalised; min-p is
relative to the most likely token and therefore does not depend on what was cut before it.

A row is drawn from its own generator and computed on its own, so a sequence with a seed gets the
same tokens whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from twostroke.engine.penalties import Penalties
from twostroke.types import SamplingParams, TokenId

Logits = npt.NDArray[np.float32]

UNUSABLE: TokenId = -1
"""Stands for a row whose highest logit is not a finite number."""


class SamplerState:
    """What sampling remembers of one sequence: its generator and the tokens it has seen.

    Without a seed the generator starts from fresh entropy.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[TokenId]) -> None:
        self.params = params
        self.penalties = Penalties.of(params, prompt_ids)
        self._generator: np.random.Generator | None = None

    @property
    def is_plain_greedy(self) -> bool:
        """True where the answer is the argmax of the logits as they are."""
        return self.params.is_greedy and self.penalties is None

    def uniform(self) -> float:
        """The next random number in [0, 1). Mutates the generator."""
        if self._generator is None:
            seed = self.params.seed  # any integer is a seed; numpy takes no negative ones
            self._generator = np.random.default_rng(None if seed is None else seed % 2**64)
        return float(self._generator.random())

    def add(self, token_id: TokenId) -> None:
        """Notes a token of the answer, for the penalties."""
        if self.penalties is not None:
            self.penalties.add(token_id)


def sample(logits: Logits, states: Sequence[SamplerState | None]) -> list[TokenId]:
    """One token for each row.

    `logits` is [batch, vocab] float32 and is not changed. `states` has an entry for each row,
    None where no token is wanted. Answers UNUSABLE for such rows and for rows that hold NaN,
    +infinity or nothing above -infinity.
    """
    highest = logits.argmax(axis=1)  # [batch]; NaN counts as the highest
    peaks = np.take_along_axis(logits, highest[:, None], axis=1)[:, 0]  # [batch]
    usable = np.isfinite(peaks)
    tokens: list[TokenId] = highest.tolist()
    for row, state in enumerate(states):
        if state is None or not usable[row]:
            tokens[row] = UNUSABLE
        elif not state.is_plain_greedy:
            tokens[row] = _sample_row(logits[row], state)
    return tokens


def _sample_row(logits: Logits, state: SamplerState) -> TokenId:
    """Draws from one row, [vocab]."""
    params = state.params
    if state.penalties is not None:
        logits = state.penalties.apply(logits)
    if params.is_greedy:
        return int(logits.argmax())
    ids: npt.NDArray[np.int64] | None = None  # None: all of the vocabulary, in order
    if 0 < params.top_k < logits.shape[0]:
        ids = np.argpartition(logits, -params.top_k)[-params.top_k :]  # [top_k], unordered
        ids.sort()  # the draw walks the ids in order, so the partition's order never matters
        logits = logits[ids]
    weights = np.exp((logits - logits.max()) / np.float32(params.temperature))  # highest is 1
    keep = _kept(weights, params.top_p, params.min_p)
    if keep is not None:
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    cumulative = np.cumsum(weights, dtype=np.float64)
    drawn = int(np.searchsorted(cumulative, state.uniform() * cumulative[-1], side="right"))
    # Rounding may reach the total itself: then it is the last token with any weight.
    drawn = min(drawn, int(np.searchsorted(cumulative, cumulative[-1])))
    return drawn if ids is None else int(ids[drawn])


def _kept(weights: Logits, top_p: float, min_p: float) -> npt.NDArray[np.int64] | None:
    """Positions that top-p and min-p leave, ascending; None for all.

    `weights` are unnormalised probabilities whose highest is 1.
    """
    keep: npt.NDArray[np.int64] | None = None
    if top_p < 1.0:
        keep = _nucleus(weights, top_p)
    if min_p > 0.0:
        if keep is None:
            return np.flatnonzero(weights >= min_p)
        keep = keep[weights[keep] >= min_p]
    return keep


def _nucleus(weights: Logits, top_p: float) -> npt.NDArray[np.int64]:
    """The fewest positions, most likely first, whose share reaches `top_p`; ascending.

    At least one is kept. Tokens lighter than total * (1 - top_p) / vocab weigh together less than
    1 - top_p of the whole, so the nucleus never needs them: only the others are sorted.
    """
    total = float(weights.sum(dtype=np.float64))
    floor = total * (1.0 - top_p) / weights.shape[0]
    candidates = np.flatnonzero(weights >= min(floor, 1.0))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(cumulative, top_p * total, side="left")) + 1
    nucleus = order[:count]
    nucleus.sort()
    return nucleus
