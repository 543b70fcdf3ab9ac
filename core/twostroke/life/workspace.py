"""What runs take beside weights and cache: activations, attention scores, logits.

Of a chunk of c tokens, at the end of a context of t tokens, one layer's values are alive at a time:

    activations   c * (6 * hidden + 2 * (sum of the two widest products)) * 4 bytes
    scores        heads * c * t * 4 bytes, where attention keeps them all at once (the CPU's does)
    logits        vocabulary * 4 bytes for each row, once for each number of rows, and a copy

All in float32: the CPU computes half floats so as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FLOAT_BYTES = 4
_HIDDEN_VALUES = 6  # residual, normed, attended, and what a norm or a rotation writes anew
_RUNTIME_BYTES = 24 * 2**20  # code that is paged in, thread pools, graphs, arenas: as measured


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes by what they are for; upper bounds."""

    activations_bytes: int
    scores_bytes: int
    logits_bytes: int
    runtime_bytes: int = _RUNTIME_BYTES

    @property
    def num_bytes(self) -> int:
        """All together."""
        parts = (self.activations_bytes, self.scores_bytes, self.logits_bytes)
        return sum(parts) + self.runtime_bytes


def plan_workspace(
    *,
    hidden_size: int,
    widest: Sequence[int],
    num_heads: int,
    vocab_size: int,
    chunk_tokens: int,
    context_tokens: int,
    num_rows: int,
    keeps_scores: bool,
) -> Workspace:
    """The workspace of an engine; `widest` are columns of the two widest products of a layer."""
    chunk = min(chunk_tokens, context_tokens)
    columns = _HIDDEN_VALUES * hidden_size + 2 * sum(widest)
    scores = num_heads * chunk * context_tokens if keeps_scores else 0
    num_logit_rows = num_rows * (num_rows + 1) // 2 + 1 + num_rows
    return Workspace(
        chunk * columns * _FLOAT_BYTES,
        scores * _FLOAT_BYTES,
        num_logit_rows * vocab_size * _FLOAT_BYTES,
    )
