"""Chooses tokens from reduced logits: the same ones that `sampler` chooses from all of them.

Greedy, top-k, top-p and min-p need the highest logits, and of the others what they weigh together;
a draw from everything needs the one block of ids that its random number falls in. What they need
beyond that (a cut below the highest, or between equal logits) is seen in the whole row, which is
then fetched; so are rows with penalties, a bias or a grammar.

The device sums weights in another order than the host. So wherever a decision depends on such a
sum and lies within SLACK of falling the other way, the whole row decides as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.backends.reduced import BLOCK_IDS
from twostroke.engine.filters import draw, kept_positions
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.sampler import UNUSABLE, SamplerState, relative_weights, sample_row
from twostroke.types import SamplingParams, TokenId

SLACK = 5e-6
"""Of the total weight. numpy sums 256 weights in 16 steps and 4 (pairwise), devices in 8: each step
rounds by 6e-8 at most, and exponentials differ by a few of those; so sums differ by less than 2e-6.
"""

_Floats = npt.NDArray[np.float32]
_Sums = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]


def sample_reduced(
    logits: ReducedLogits,
    states: Sequence[SamplerState | None],
    failed: Callable[[int, Exception], None] | None = None,
) -> list[TokenId]:
    """One token for each row; see `sampler.sample`, whose answer it is for all logits."""
    finite = [bool(np.isfinite(weights).all()) for weights in logits.block_weights]
    greedy = _highest(logits)
    tokens = [UNUSABLE] * len(states)
    for row, state in enumerate(states):
        if state is None:
            continue
        try:
            tokens[row] = _token(logits, row, state, greedy[row] if finite[row] else None)
        except Exception as fault:
            if failed is None:
                raise
            failed(row, fault)
    return tokens


def _highest(logits: ReducedLogits) -> list[TokenId]:
    """The first id with the highest logit of each row; UNUSABLE where that cannot be told."""
    top, ids = logits.top_logits, logits.top_ids  # [batch, k]
    tied: npt.NDArray[np.bool_] = np.equal(top, top.max(axis=1, keepdims=True))  # [batch, k]
    vocab_size = logits.shape[1]
    first = np.where(tied, ids, vocab_size).min(axis=1)  # [batch]
    if top.shape[1] < vocab_size:
        first[tied.all(axis=1)] = UNUSABLE  # others may be as high
    found: list[TokenId] = first.tolist()
    return found


def _token(
    logits: ReducedLogits, row: int, state: SamplerState, highest: TokenId | None
) -> TokenId:
    """`highest` is None where the row holds what is no finite number."""
    if highest is None or state.allowed is not None or state.penalties is not None:
        return _of_whole(logits, row, state, None)
    if state.params.is_greedy:
        return _of_whole(logits, row, state, None) if highest == UNUSABLE else highest
    uniform = state.uniform()
    drawn = _Row(logits, row, state.params).draw(uniform)
    return _of_whole(logits, row, state, uniform) if drawn is None else drawn


def _of_whole(
    logits: ReducedLogits, row: int, state: SamplerState, uniform: float | None
) -> TokenId:
    whole = logits.row(row)  # [vocab]
    if not np.isfinite(whole.max()):
        return UNUSABLE
    return sample_row(whole, state, uniform)


class _Row:
    """One row, highest first; equal ones by id."""

    def __init__(self, logits: ReducedLogits, row: int, params: SamplingParams) -> None:
        order = np.lexsort((logits.top_ids[row], -logits.top_logits[row]))
        self._logits = logits
        self._row = row
        self._params = params
        self._ids: _Ids = logits.top_ids[row][order]  # [k]
        self._top: _Floats = logits.top_logits[row][order]  # [k]
        self._has_all = self._ids.shape[0] == logits.shape[1]

    def draw(self, uniform: float) -> TokenId | None:
        """The token that a random number in [0, 1) chooses; None where only all logits tell."""
        params, vocab_size = self._params, self._logits.shape[1]
        if 0 < params.top_k < vocab_size:
            return self._draw_of_top_k(uniform)
        if params.top_p < 1.0 or params.min_p > 0.0:
            weights = relative_weights(self._top, params.temperature)  # [k], falling
            count = self._num_kept(weights)
            return None if count is None else self._draw_of_first(count, weights, uniform)
        return self._draw_of_all(uniform)

    def _draw_of_top_k(self, uniform: float) -> TokenId | None:
        params, count = self._params, self._params.top_k
        if count >= self._top.shape[0] or self._top[count - 1] == self._top[count]:
            return None
        by_id = np.argsort(self._ids[:count])
        ids = self._ids[by_id]
        weights = relative_weights(self._top[by_id], params.temperature)
        kept = kept_positions(weights, params.top_p, params.min_p)
        if kept is not None:
            ids, weights = ids[kept], weights[kept]
        return int(ids[draw(weights, uniform)])

    def _num_kept(self, weights: _Floats) -> int | None:
        """How many of the highest top-p and min-p leave; None where that cannot be told."""
        params = self._params
        count = int(weights.shape[0])
        if params.top_p < 1.0:
            nucleus = self._nucleus(weights, params.top_p)
            if nucleus is None:
                return None
            count = nucleus
        if params.min_p > 0.0:
            num_heavy = int((weights >= params.min_p).sum())
            if params.top_p >= 1.0 and num_heavy == count and not self._has_all:
                return None  # lighter ones may be kept as well
            count = min(count, num_heavy)
        return count

    def _nucleus(self, weights: _Floats, top_p: float) -> int | None:
        total = float(self._block_weights().sum())
        cumulative: _Sums = np.cumsum(weights, dtype=np.float64)
        target, slack = top_p * total, SLACK * total
        count = int(np.searchsorted(cumulative, target, side="left")) + 1
        if count >= weights.shape[0] or cumulative[count - 1] < target + slack:
            return None
        if count > 1 and cumulative[count - 2] > target - slack:
            return None
        return None if float(weights[count - 1]) == float(weights[count]) else count

    def _draw_of_first(self, count: int, weights: _Floats, uniform: float) -> TokenId:
        by_id = np.argsort(self._ids[:count])
        return int(self._ids[by_id[draw(weights[by_id], uniform)]])

    def _draw_of_all(self, uniform: float) -> TokenId | None:
        """The block first, then the id in it, whose logits are fetched."""
        cumulative = np.cumsum(self._block_weights())
        slack = SLACK * float(cumulative[-1])
        point = uniform * float(cumulative[-1])
        block = _place(cumulative, point, slack)
        if block is None:
            return None
        inner = self._logits.block(self._row, block)  # [ids of the block]
        weights = relative_weights(inner, self._params.temperature, highest=self._top[0])
        within = point - float(cumulative[block - 1]) if block else point
        place = _place(np.cumsum(weights, dtype=np.float64), within, slack)
        return None if place is None else block * BLOCK_IDS + place

    def _block_weights(self) -> _Sums:
        return np.asarray(self._logits.block_weights[self._row], np.float64)  # [blocks]


def _place(cumulative: _Sums, point: float, slack: float) -> int | None:
    """Where `point` falls; None where it is within `slack` of falling elsewhere."""
    place = int(np.searchsorted(cumulative, point, side="right"))
    if place == cumulative.shape[0] or point > cumulative[place] - slack:
        return None
    return None if place and point < cumulative[place - 1] + slack else place
