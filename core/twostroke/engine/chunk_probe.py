"""Whether a foreign graph can go on with a prompt that was begun: tried, not believed.

A graph that other tools traced with a single token may declare any number of them and still lack
the causal mask between them, which would give wrong answers without an error. Graphs of our own
exporter are checked when they are made; they are known by their `logit_index`.
"""

from __future__ import annotations

import logging

import numpy as np

from twostroke.bundle.contract import LOGIT_INDEX
from twostroke.engine.open_graph import OpenGraph
from twostroke.engine.runner import Runner

log = logging.getLogger(__name__)

_NUM_TOKENS = 9
_NUM_FIRST = 3
_TOLERANCE = 1e-2
"""Of the largest logit: rounding stays far below it, a missing mask far above."""


def settle_chunks(
    runner: Runner, prefill: OpenGraph, decode: OpenGraph, context_tokens: int
) -> None:
    """Has prompts read whole where their chunks would be read wrongly. Mutates `runner`.

    Uses the runner's first row.

    Raises:
        EngineError: the graph cannot read a prompt at all.
    """
    reader = prefill if prefill.past else decode  # of every chunk but the first
    is_ours = LOGIT_INDEX in reader.session.inputs or not reader.is_concatenating
    if runner.chunks_prompts and not is_ours:
        runner.chunks_prompts = context_tokens >= _NUM_TOKENS and _agree(runner)
    if not runner.chunks_prompts:
        log.warning(
            "%s cannot go on with a prompt that was begun: prompts are read whole, and a long one "
            "delays the running streams by its whole length",
            reader.name,
        )


def _agree(runner: Runner) -> bool:
    ids = tuple(range(1, 1 + _NUM_TOKENS))
    ids = tuple(token % runner.vocab_size for token in ids)
    whole = runner.prefill(0, 0, ids, is_last=True).copy()
    runner.prefill(0, 0, ids[:_NUM_FIRST], is_last=False)
    chunked = runner.prefill(0, _NUM_FIRST, ids[_NUM_FIRST:], is_last=True)
    difference = float(np.abs(chunked - whole).max())
    return difference <= _TOLERANCE * max(1e-6, float(np.abs(whole).max()))
