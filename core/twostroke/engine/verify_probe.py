"""Whether a verification says what decoding says: measured on the runner, not believed.

A verification reads several tokens at once. Some kernels then compute otherwise than for one token:
the products of ONNX Runtime's CPU provider over int8 and int4 weights round their activations more
coarsely, which moves logits by a few per cent and now and then another token to the top.
"""

from __future__ import annotations

import numpy as np

from twostroke.engine.runner import Runner

TOLERANCE = 1e-3
"""Of the largest logit: the rounding of floats stays far below it, that of integers far above."""

_NUM_READ = 4
_NUM_VERIFIED = 4


def verification_difference(runner: Runner, context_tokens: int) -> float:
    """The largest difference of a logit, as a part of the largest logit.

    Uses the runner's first row, while nobody else does. 0 where the context is too short to try.

    Raises:
        EngineError: a run failed.
    """
    num_tokens = _NUM_READ + _NUM_VERIFIED
    if context_tokens < num_tokens + 1:
        return 0.0
    ids = [(7 * position + 1) % runner.vocab_size for position in range(num_tokens)]
    runner.prefill(0, 0, ids[:_NUM_READ], is_last=True)
    decoded = np.concatenate(
        [runner.decode(0, [ids[at]], [at]).copy() for at in range(_NUM_READ, num_tokens)]
    )  # [tokens, vocab]
    runner.prefill(0, 0, ids[:_NUM_READ], is_last=True)
    verified = runner.verify(0, _NUM_READ, ids[_NUM_READ:])  # [tokens, vocab]
    scale = max(1e-6, float(np.abs(decoded).max()))
    return float(np.abs(verified - decoded).max()) / scale
