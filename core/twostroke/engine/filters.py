"""What top-k, top-p and min-p leave of one row, and the draw from it: functions of arrays.

A vocabulary is long and its distribution is not: each function first narrows it down by block
(one pass that vectorises) and does the costly part, sorting or summing in order, on what is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

_BLOCK = 256


def top_positions(logits: Floats, count: int) -> Positions:
    """Positions of the `count` highest of `logits` [vocab], ascending; ties are cut anywhere."""
    positions = np.arange(logits.shape[0])
    peaks = np.maximum.reduceat(logits, np.arange(0, logits.shape[0], _BLOCK))
    if count < peaks.shape[0]:
        # So many blocks reach this threshold, so at least as many tokens do.
        positions = np.flatnonzero(logits >= np.partition(peaks, -count)[-count])
    if positions.shape[0] > count:
        best = np.argpartition(logits[positions], -count)[-count:]
        positions = np.sort(positions[best])
    return positions


def kept_positions(weights: Floats, top_p: float, min_p: float) -> Positions | None:
    """Positions that top-p and then min-p leave, ascending; None for all.

    `weights` [n] are probabilities times a constant, the highest is 1.
    """
    kept: Positions | None = None
    if top_p < 1.0:
        kept = nucleus(weights, top_p)
    if min_p > 0.0:
        if kept is None:
            return np.flatnonzero(weights >= min_p)
        kept = kept[weights[kept] >= min_p]
    return kept


def nucleus(weights: Floats, top_p: float) -> Positions:
    """The fewest positions, most likely first, whose share reaches `top_p`; ascending.

    At least one is kept. Tokens lighter than total * (1 - top_p) / n weigh together less than
    1 - top_p of the whole, so the nucleus never needs them: only the others are sorted.
    """
    total = float(weights.sum())
    floor = total * (1.0 - top_p) / weights.shape[0]
    candidates = np.flatnonzero(weights >= min(floor, 1.0))
    order = candidates[np.argsort(-weights[candidates])]
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(cumulative, top_p * total, side="left")) + 1
    return np.sort(order[:count])


def draw(weights: Floats, uniform: float) -> int:
    """The position that a random number in [0, 1) falls on, each as likely as its weight."""
    if weights.shape[0] <= 4 * _BLOCK:
        cumulative = np.cumsum(weights, dtype=np.float64)
        return _first_above(cumulative, uniform * cumulative[-1])
    # The block first, then the position within it.
    blocks = np.add.reduceat(weights, np.arange(0, weights.shape[0], _BLOCK))
    cumulative = np.cumsum(blocks, dtype=np.float64)
    point = uniform * cumulative[-1]
    block = _first_above(cumulative, point)
    within = point - cumulative[block - 1] if block else point
    start = block * _BLOCK
    inner = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    return start + _first_above(inner, within)


def _first_above(cumulative: npt.NDArray[np.float64], point: float) -> int:
    """The first position whose cumulative weight exceeds `point`; it has a weight above 0.

    Rounding may push `point` to the total: then it is the last position with any weight.
    """
    found = int(np.searchsorted(cumulative, point, side="right"))
    return min(found, int(np.searchsorted(cumulative, cumulative[-1], side="left")))
