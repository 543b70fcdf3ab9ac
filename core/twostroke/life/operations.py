"""Multiplications and additions of runs: what plans forecast by and what runs are held against."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.bundle.manifest import KVLayer
from twostroke.life.weights import Weights


def run_ops(
    weights: Weights,
    layers: Sequence[KVLayer],
    *,
    num_heads: int,
    num_tokens: int,
    start: int = 0,
    windows: Sequence[int | None] | None = None,
) -> float:
    """Operations of one run that reads `num_tokens` of one sequence behind `start` others.

    Two for each parameter and token (those of the head for one token only), and for attention, with
    a causal mask, 4 * heads * head_dim for each pair of tokens that see each other (Kaplan et al.
    2020, section 2.1). `windows` says for each layer how many tokens it sees at most; None: all.
    """
    products = 2.0 * (weights.num_multiplied * num_tokens + weights.num_head)
    attention = 0.0
    for layer, window in zip(layers, windows or (None,) * len(layers), strict=True):
        pairs = _pairs(start + num_tokens, window) - _pairs(start, window)
        attention += 4.0 * num_heads * layer.head_dim * pairs
    return products + attention


def _pairs(num_tokens: int, window: int | None) -> float:
    """Pairs of tokens that see each other among the first `num_tokens`."""
    seen = min(window or num_tokens, num_tokens)
    return seen * (seen + 1) / 2 + (num_tokens - seen) * seen
