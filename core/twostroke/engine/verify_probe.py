"""Whether several tokens at once come out as one after the other: measured, not believed.

A run over several tokens sums the products of attention in another order than runs over one. That
moves a float by its last bits, and that is all in a model of floats. Where activations become
integers (ONNX Runtime's kernels for int8 and int4 weights), a last bit decides now and then which
integer it is, each layer adds to what the one before began, and the logits at the end are off by
a per cent or two: enough for another token.
"""

from __future__ import annotations

import numpy as np

from twostroke.engine.logits import Logits
from twostroke.engine.runner import Runner

TOLERANCE = 1e-3
"""Of the largest logit: the rounding of floats stays far below it, that of integers far above."""

_NUM_READ = 4
_NUM_DECODED = 4


def verification_difference(runner: Runner, context_tokens: int) -> float:
    """How far the logits of a verification are from those of decoding, see `_difference`.

    Uses the runner's first row, while nobody else does. 0 where the context is too short to try.

    Raises:
        EngineError: a run failed.
    """
    if context_tokens < _NUM_READ + _NUM_DECODED + 1:
        return 0.0
    ids = _some_ids(runner)
    decoded = _decode(runner, ids)  # [tokens, vocab]
    runner.prefill(0, 0, ids[:_NUM_READ], is_last=True)
    verified = runner.verify(0, _NUM_READ, ids[_NUM_READ:-1])  # [tokens, vocab]
    return _difference(verified, decoded)


def continuation_difference(runner: Runner, context_tokens: int) -> float:
    """How far the logits behind tokens that were decoded are from those behind a prompt that was
    read, see `_difference`.

    Uses the runner's first row, while nobody else does. 0 where the context is too short to try.

    Raises:
        EngineError: a run failed.
    """
    end = _NUM_READ + _NUM_DECODED
    if context_tokens < end + 2:
        return 0.0
    ids = _some_ids(runner)
    _decode(runner, ids)
    behind_answer = runner.decode(0, ids[end:], [end]).copy()  # [1, vocab]
    runner.prefill(0, 0, ids[:end], is_last=True)
    return _difference(behind_answer, runner.decode(0, ids[end:], [end]))


def _some_ids(runner: Runner) -> list[int]:
    count = _NUM_READ + _NUM_DECODED + 1
    return [(7 * position + 1) % runner.vocab_size for position in range(count)]


def _decode(runner: Runner, ids: list[int]) -> Logits:
    """Reads the first ids, decodes those behind but the last; the logits of these."""
    runner.prefill(0, 0, ids[:_NUM_READ], is_last=True)
    runs = [runner.decode(0, [ids[at]], [at]).copy() for at in range(_NUM_READ, len(ids) - 1)]
    return np.concatenate(runs)  # [tokens, vocab]


def _difference(one: Logits, other: Logits) -> float:
    """The largest difference of a logit, as a part of the largest logit."""
    return float(np.abs(one - other).max()) / max(1e-6, float(np.abs(other).max()))
