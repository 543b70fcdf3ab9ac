"""Where graphs write their logits, and what of them is answered."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Buffer, ReshapableBuffer
from twostroke.bundle.contract import LOGITS
from twostroke.engine.open_graph import LogitRows, OpenGraph

Logits = npt.NDArray[np.float32]

MAX_KEPT_POSITIONS = 17
"""Of a row: a token with a draft behind it. Above it logits are too large to be kept."""


class LogitBuffers:
    """Memory for the logits of a graph, [batch, positions, vocab]: the host's, unless the graph
    keeps them on the device.

    One of each batch size is kept for single positions and for each of a few. Of the others, which
    hold a whole chunk, only one is kept and used for shorter chunks too: 256 positions of a large
    vocabulary take 150 MB.
    """

    def __init__(self, graph: OpenGraph, vocab_size: int) -> None:
        self._graph = graph
        self._vocab_size = vocab_size
        self._few: dict[tuple[int, int], Buffer] = {}
        self._several: Buffer | None = None

    def of(self, count: int, num_new: int, wanted: Sequence[int]) -> Buffer:
        """The buffer for a run of `count` rows with `num_new` tokens each."""
        num_positions = {
            LogitRows.ALL: num_new,
            LogitRows.TAIL: num_new - wanted[0],
            LogitRows.CHOSEN: len(wanted),
        }.get(self._graph.logit_rows, 1)
        shape = (count, num_positions, self._vocab_size)
        if num_positions <= MAX_KEPT_POSITIONS:
            key = (count, num_positions)
            if key not in self._few:
                self._few[key] = self._allocate(shape)
            return self._few[key]
        kept = self._several
        if kept is not None and kept.shape == shape:
            return kept
        if isinstance(kept, ReshapableBuffer) and math.prod(shape) <= math.prod(kept.shape):
            return kept.reshaped(shape)
        self._several = kept = None  # freed before the next is asked for
        self._several = self._allocate(shape)
        return self._several

    def answer(self, buffer: Buffer, wanted: Sequence[int]) -> Logits:
        """The logits of the wanted positions, [batch, len(wanted), vocab] float32.

        May be a view that the next run overwrites.
        """
        logits = buffer.read()  # [batch, positions, vocab]
        # Wanted positions are neighbours, so a view is enough.
        first = wanted[0] if self._graph.logit_rows is LogitRows.ALL else 0
        logits = logits[:, first : first + len(wanted)]
        return logits.astype(np.float32, copy=False)

    def clear(self) -> None:
        """Frees the memory."""
        self._few.clear()
        self._several = None

    def _allocate(self, shape: tuple[int, ...]) -> Buffer:
        dtype = self._graph.session.outputs[LOGITS].dtype
        return self._graph.backend.allocate(shape, dtype, on_host=not self._graph.keeps_logits)
