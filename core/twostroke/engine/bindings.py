"""Bindings of the two strokes: which small inputs they have and how a run feeds them.

The KV cache is bound once for each span of rows; a run changes a few small buffers in place.
What a graph declares decides what it is fed (`position_ids` is optional).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Array, Backend, Binding, Buffer, Session
from twostroke.bundle.contract import (
    INPUT_IDS,
    LOGIT_INDEX,
    LOGITS,
    POSITION_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
)
from twostroke.engine.kv_buffers import KVBuffers, present_of
from twostroke.types import TokenId

Logits = npt.NDArray[np.float32]


class BoundRun:
    """One binding with its small inputs; each `run` feeds them and runs.

    `inputs` maps each small input to its buffer, `logits` is [batch, 1, vocab]. The values are
    gathered in host arrays that are kept, because a step of a small model is over in a few
    milliseconds.
    """

    def __init__(
        self,
        session: Session,
        past: Mapping[str, Buffer],
        inputs: dict[str, Buffer],
        logits: Buffer,
    ) -> None:
        self._values: dict[str, Array] = {
            name: np.zeros(buffer.shape, np.dtype(buffer.dtype)) for name, buffer in inputs.items()
        }
        self._feeds = [(buffer, self._values[name]) for name, buffer in inputs.items()]
        self._num_new = inputs[INPUT_IDS].shape[1]
        self._logits = logits
        self._binding: Binding = session.bind(
            {**inputs, **past}, {LOGITS: logits, **present_of(past)}
        )

    def run(
        self,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        logit_index: int,
    ) -> Logits:
        """Feeds the declared small inputs, runs, and answers the logits, [batch, vocab] float32.

        The answer may be a view that the next run overwrites.
        """
        values = self._values
        values[INPUT_IDS][...] = token_ids  # [batch, sequence]
        values[SEQLENS_K][...] = past_lengths  # [batch]
        values[SEQLENS_K] += self._num_new - 1
        values[TOTAL_SEQUENCE_LENGTH][...] = max(past_lengths) + self._num_new
        if POSITION_IDS in values:  # [batch, sequence]
            values[POSITION_IDS][...] = np.add.outer(past_lengths, np.arange(self._num_new))
        if LOGIT_INDEX in values:
            values[LOGIT_INDEX][...] = logit_index  # [batch, 1]
        for buffer, value in self._feeds:
            buffer.write(value)
        self._binding.run()
        logits = self._logits.read()  # [batch, 1, vocab]
        return logits.reshape(logits.shape[0], -1).astype(np.float32, copy=False)


class StrokeBindings:
    """Makes the bindings of one session over one set of KV buffers and keeps the recent ones.

    A binding belongs to a span of rows and a number of tokens a row; decode has one for each
    span, prefill one for each row and chunk length, of which the `max_kept` last used stay.
    """

    def __init__(
        self, backend: Backend, session: Session, kv: KVBuffers, vocab_size: int, max_kept: int
    ) -> None:
        self._backend = backend
        self._session = session
        self._kv = kv
        self._vocab_size = vocab_size
        self._max_kept = max_kept
        self._kept: OrderedDict[tuple[int, int, int], BoundRun] = OrderedDict()
        self._logits: dict[int, Buffer] = {}

    def run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        logit_index: int = 0,
    ) -> Logits:
        """Runs the graph for rows [start_row, start_row + batch) and answers [batch, vocab].

        `token_ids` is [batch, sequence], `past_lengths` the tokens already in each row. Mutates
        those rows of the KV buffers.
        """
        bound = self._bound(start_row, len(token_ids), len(token_ids[0]))
        return bound.run(token_ids, past_lengths, logit_index)

    def close(self) -> None:
        """Drops every binding, before their session is closed."""
        self._kept.clear()
        self._logits.clear()

    def _bound(self, start_row: int, count: int, num_new: int) -> BoundRun:
        key = (start_row, count, num_new)
        bound = self._kept.get(key)
        if bound is None:
            while len(self._kept) >= self._max_kept:
                self._kept.popitem(last=False)
            bound = self._kept[key] = self._bind(start_row, count, num_new)
        self._kept.move_to_end(key)
        return bound

    def _bind(self, start_row: int, count: int, num_new: int) -> BoundRun:
        shapes = {
            INPUT_IDS: (count, num_new),
            POSITION_IDS: (count, num_new),
            LOGIT_INDEX: (count, 1),
        }
        inputs: dict[str, Buffer] = {}
        for name, spec in self._session.inputs.items():
            if name in self._kv.names:
                continue
            is_scalar = name == TOTAL_SEQUENCE_LENGTH
            shape = shapes.get(name, (1,) * len(spec.shape) if is_scalar else (count,))
            inputs[name] = self._backend.allocate(shape, spec.dtype, on_host=True)
        past = self._kv.span(start_row, count)
        return BoundRun(self._session, past, inputs, self._logits_of(count))

    def _logits_of(self, count: int) -> Buffer:
        """[count, 1, vocab] float32, shared by every binding of that batch size."""
        if count not in self._logits:
            shape = (count, 1, self._vocab_size)
            dtype = self._session.outputs[LOGITS].dtype
            self._logits[count] = self._backend.allocate(shape, dtype, on_host=True)
        return self._logits[count]
