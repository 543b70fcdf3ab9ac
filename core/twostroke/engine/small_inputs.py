"""The inputs of a graph that change with each run, and the host memory they are fed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from twostroke.backends.protocol import Buffer, TensorSpec
from twostroke.backends.reduced import INVERSE_TEMPERATURE
from twostroke.bundle.contract import (
    ATTENTION_MASK,
    INPUT_IDS,
    LOGIT_INDEX,
    NUM_LOGITS_TO_KEEP,
    POSITION_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
    USE_CACHE_BRANCH,
)
from twostroke.engine.open_graph import OpenGraph
from twostroke.engine.staging import stage
from twostroke.types import TokenId


class SmallInputs:
    """Buffers for `count` rows of `num_new` tokens, and how they are filled.

    `num_wanted` positions of each row are asked for, `total` is the longest row after the run
    (only a mask's shape depends on it), `room` what a row has room for.
    """

    def __init__(
        self, graph: OpenGraph, count: int, num_new: int, num_wanted: int, total: int, room: int = 0
    ) -> None:
        self._staged = stage(
            graph.backend,
            {
                name: (_shape(spec, count, num_new, num_wanted, total), spec.dtype)
                for name, spec in graph.small_inputs.items()
            },
            is_for_one_run=ATTENTION_MASK in graph.small_inputs,  # another shape each time
        )
        self._num_new = num_new
        # A run that is replayed reads on the host what it read when it was recorded.
        self._longest = room if graph.replays_runs else None

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """What a session binds, by name."""
        return self._staged.buffers

    def write(
        self,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int],
        inverse_temperatures: Sequence[float] | None = None,
    ) -> None:
        """Feeds what the graph declares.

        `token_ids` is [batch, sequence], `past_lengths` the tokens already in each row, `wanted`
        the positions within the chunk whose logits are asked for; `inverse_temperatures` is
        [batch], ones where nobody says. Mutates the buffers.
        """
        values, num_new = self._staged.values, self._num_new
        values[INPUT_IDS][...] = token_ids  # [batch, sequence]
        if SEQLENS_K in values:  # [batch]
            values[SEQLENS_K][...] = past_lengths
            values[SEQLENS_K] += num_new - 1
        if TOTAL_SEQUENCE_LENGTH in values:  # []
            longest = self._longest or max(past_lengths) + num_new
            values[TOTAL_SEQUENCE_LENGTH][...] = longest
        if POSITION_IDS in values:  # [batch, sequence]
            values[POSITION_IDS][...] = np.add.outer(past_lengths, np.arange(num_new))
        if LOGIT_INDEX in values:  # [batch, k] or [batch]
            values[LOGIT_INDEX][...] = wanted
        if NUM_LOGITS_TO_KEEP in values:  # []
            values[NUM_LOGITS_TO_KEEP][...] = num_new - wanted[0]
        if ATTENTION_MASK in values:  # [batch, total]: ones, then zeros behind shorter rows
            mask = values[ATTENTION_MASK]
            lengths = np.asarray(past_lengths)[:, None] + num_new  # [batch, 1]
            mask[...] = np.arange(mask.shape[1]) < lengths
        if USE_CACHE_BRANCH in values:  # [1]
            values[USE_CACHE_BRANCH][...] = past_lengths[0] > 0
        if INVERSE_TEMPERATURE in values:  # [batch, 1, 1]
            values[INVERSE_TEMPERATURE][:, 0, 0] = inverse_temperatures or 1.0
        self._staged.send()


def _shape(
    spec: TensorSpec, count: int, num_new: int, num_wanted: int, total: int
) -> tuple[int, ...]:
    if spec.name in (INPUT_IDS, POSITION_IDS):
        return (count, num_new)
    if spec.name == ATTENTION_MASK:
        return (count, total)
    if spec.name == LOGIT_INDEX and len(spec.shape) == 2:
        return (count, num_wanted)
    if spec.name == INVERSE_TEMPERATURE:
        return (count, 1, 1)
    if spec.name in (TOTAL_SEQUENCE_LENGTH, USE_CACHE_BRANCH, NUM_LOGITS_TO_KEEP):
        return (1,) * len(spec.shape)
    return (count,)
