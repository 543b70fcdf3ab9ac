"""What a decode step answers where logits are reduced on the device; see `backends.reduced`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Array, Buffer, ReshapableBuffer
from twostroke.backends.reduced import BLOCK_IDS, BLOCK_WEIGHTS, TOP_IDS, TOP_LOGITS

Floats = npt.NDArray[np.float32]


class ReducedLogits:
    """The highest logits of each row and the weights of blocks of ids; all others on demand.

    `top_logits` and `top_ids` are [batch, k], in no order that can be relied on; `block_weights`
    [batch, blocks]. `logits` is the device's buffer, [batch, 1, vocab]. All of it is valid until
    the next run.
    """

    def __init__(
        self, reduced: Mapping[str, Array], logits: Buffer, *, has_row_views: bool
    ) -> None:
        self.top_logits: Floats = reduced[TOP_LOGITS][:, 0]
        self.top_ids: npt.NDArray[np.int64] = reduced[TOP_IDS][:, 0]
        self.block_weights: Floats = reduced[BLOCK_WEIGHTS][:, 0]
        self.num_fetched_bytes = 0
        self._logits = logits
        self._has_row_views = has_row_views
        self._all: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and vocabulary."""
        return self._logits.shape[0], self._logits.shape[2]

    def row(self, number: int) -> Floats:
        """All logits of a row, [vocab], from the device."""
        if not self._has_row_views:
            whole: Floats = self._whole()[number]
            return whole
        return self._read(self._logits.rows(number, 1))

    def block(self, row: int, number: int) -> Floats:
        """The logits of one block of ids of a row, [up to BLOCK_IDS], from the device."""
        start = number * BLOCK_IDS
        if not self._has_row_views or not isinstance(self._logits, ReshapableBuffer):
            return self.row(row)[start : start + BLOCK_IDS]
        vocab_size = self._logits.shape[2]
        flat = self._logits.reshaped((math.prod(self._logits.shape),))
        count = min(BLOCK_IDS, vocab_size - start)
        return self._read(flat.rows(row * vocab_size + start, count))

    def _whole(self) -> Floats:
        """Every row, [batch, vocab], once."""
        if self._all is None:
            self._all = self._read(self._logits).reshape(self.shape)
        return self._all

    def _read(self, buffer: Buffer) -> Floats:
        values = buffer.read()
        self.num_fetched_bytes += values.nbytes
        return values.reshape(-1).astype(np.float32, copy=False)
