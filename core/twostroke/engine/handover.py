"""Copies a row's KV cache from the prefill backend to the decode backend, once, after prefill."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from twostroke.backends.protocol import Buffer
from twostroke.engine.kv_buffers import KVBuffers

HandOver = Callable[[int, int], None]
"""Called with (row, num_tokens) when a row's prefill ends."""


def make_hand_over(source: KVBuffers, target: KVBuffers) -> HandOver:
    """A function that copies the first tokens of a row from `source` to `target`.

    The dtypes may differ (an fp16 prefill may feed an fp32 decode): values are cast.
    """

    def hand_over(row: int, num_tokens: int) -> None:
        sources, targets = source.span(row, 1), target.span(row, 1)
        for name in source.names:
            copy_tokens(sources[name], targets[name], num_tokens)

    return hand_over


def copy_tokens(source: Buffer, target: Buffer, num_tokens: int) -> None:
    """Copies positions [0, num_tokens) of two buffers [1, kv_heads, capacity, head_dim].

    Mutates `target`; what lies behind `num_tokens` in it is undefined afterwards.
    """
    values = source.read()  # [1, kv_heads, capacity, head_dim]
    contents = target.read()  # the same shape
    if contents.flags.writeable and np.may_share_memory(contents, target.read()):
        # Host memory: a row of a long context is mostly empty, so only its tokens are copied.
        contents[:, :, :num_tokens] = values[:, :, :num_tokens]
    else:
        target.write(values.astype(np.dtype(target.dtype), copy=False))
