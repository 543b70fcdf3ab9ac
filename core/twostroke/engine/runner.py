"""Runs the two graphs: owns their sessions and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from twostroke.backends.protocol import Placement
from twostroke.bundle.manifest import Manifest
from twostroke.engine.bindings import InPlaceRuns
from twostroke.engine.concatenating import ConcatenatingRuns
from twostroke.engine.handover import check_hand_over, hand_over
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.logits import Logits
from twostroke.engine.open_graph import OpenGraph
from twostroke.types import Stroke, TokenId


class _Runs(Protocol):
    """The runs of one graph; see `InPlaceRuns`."""

    def run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int] = (0,),
    ) -> Logits: ...

    def close(self) -> None: ...


class Runner:
    """Feeds prompt chunks and decode batches to the sessions; called by one thread.

    Where both graphs are on the same backend object and treat the KV cache alike they share it,
    and a row never moves. Otherwise each has its own and a row is copied when its prefill ends.
    `chunks_prompts` False: a prompt must be given whole.
    """

    def __init__(
        self,
        prefill: OpenGraph,
        decode: OpenGraph,
        manifest: Manifest,
        *,
        num_rows: int,
        capacity_tokens: int,
    ) -> None:
        check_hand_over(prefill, decode)
        self._prefill, self._decode = prefill, decode
        self.vocab_size = decode.vocab_size or manifest.architecture.vocab_size
        self.chunks_prompts = prefill.takes_chunks or decode.takes_chunks

        def open_kv(graph: OpenGraph) -> KVBuffers | ConcatenatedKV:
            kind = ConcatenatedKV if graph.is_concatenating else KVBuffers
            return kind(
                graph.backend,
                manifest.kv_layers,
                graph.kv_dtype,
                num_rows=num_rows,
                capacity_tokens=capacity_tokens,
            )

        def open_runs(graph: OpenGraph, kv: KVBuffers | ConcatenatedKV) -> _Runs:
            if isinstance(kv, ConcatenatedKV):
                return ConcatenatingRuns(graph, kv, self.vocab_size)
            return InPlaceRuns(graph, kv, self.vocab_size, max_kept=8 * num_rows)

        self._decode_kv = self._prefill_kv = open_kv(decode)
        self._has_one_kv = shares_kv(prefill, decode)
        if not self._has_one_kv:
            self._prefill_kv = open_kv(prefill)
        self._prefill_runs = open_runs(prefill, self._prefill_kv)
        self._decode_runs = open_runs(decode, self._decode_kv)
        # Tokens of each row that the prefill graph's cache holds as well; decode adds to its own.
        self._num_prefilled = [0] * num_rows
        self.placements: Mapping[Stroke, Placement] = {
            Stroke.PREFILL: prefill.session.placement,
            Stroke.DECODE: decode.session.placement,
        }

    @property
    def decodes_alone(self) -> bool:
        """Whether the decode graph's layout of the cache allows one sequence in a run only."""
        return self._decode.is_concatenating

    @property
    def max_span_rows(self) -> int | None:
        """How many rows one decode run may cover: 1, or None for any number."""
        return 1 if self.decodes_alone or not self._decode.backend.has_row_views else None

    def prefill(
        self, row: int, start: int, token_ids: Sequence[TokenId], *, is_last: bool
    ) -> Logits:
        """Writes a chunk at positions [start, start + len(token_ids)) of `row`.

        Answers the logits of the chunk's last token, [1, vocab], a view that the next run
        overwrites. Mutates the row; after the last chunk it is ready for `decode`.

        Raises:
            EngineError: the run failed; other rows are untouched.
        """
        wanted = (len(token_ids) - 1,)
        return self._read(row, start, token_ids, wanted, is_last=is_last)[:, -1]

    def decode(
        self, start_row: int, token_ids: Sequence[TokenId], past_lengths: Sequence[int]
    ) -> Logits:
        """Feeds one token to each of the rows [start_row, start_row + len(token_ids)).

        `past_lengths[i]` is what row start_row + i holds; its token is written right behind. A
        row that must not decode is fed any token at its own length, where the next real token
        overwrites it. Answers [batch, vocab], a view that the next run overwrites.

        Raises:
            EngineError: the run failed; rows outside of the span are untouched.
        """
        logits = self._decode_runs.run(start_row, [(token,) for token in token_ids], past_lengths)
        for row, past_length in enumerate(past_lengths, start_row):
            self._num_prefilled[row] = min(self._num_prefilled[row], past_length)
        return logits[:, -1]

    def score(self, row: int, start: int, token_ids: Sequence[TokenId]) -> Logits:
        """Writes a chunk as `prefill` does, and answers the logits of each of its positions.

        Row i of the answer, [len(token_ids), vocab], says what follows token_ids[i]. It is a
        view that the next run overwrites. The row must hold `start` tokens and is ready for
        `decode` afterwards. Where the graphs cannot answer more than one position in a run, the
        tokens go through decode one by one.

        Raises:
            EngineError: a run failed; other rows are untouched.
        """
        reader = self._reader(start)
        holds_row = self._has_one_kv or start <= self._num_prefilled[row] or reader is self._decode
        can_go_on = start == 0 or (self.chunks_prompts and holds_row)
        if can_go_on and reader.logit_rows.may_be_several:
            logits = self._read(row, start, token_ids, range(len(token_ids)), is_last=True)
            return logits.reshape(len(token_ids), -1)
        answers = [
            self.decode(row, [token], [start + offset]).copy()
            for offset, token in enumerate(token_ids)
        ]
        return np.concatenate(answers)

    def close(self) -> None:
        """Frees bindings and sessions. The backends stay open: whoever opened them closes them."""
        self._prefill_runs.close()
        self._decode_runs.close()
        self._prefill.session.close()
        if self._decode.session is not self._prefill.session:
            self._decode.session.close()

    def _reader(self, start: int) -> OpenGraph:
        """The graph that reads prompt tokens at `start`."""
        return self._prefill if start == 0 or self._prefill.past else self._decode

    def _read(
        self,
        row: int,
        start: int,
        token_ids: Sequence[TokenId],
        wanted: Sequence[int],
        *,
        is_last: bool,
    ) -> Logits:
        """Reads a chunk and answers [1, len(wanted), vocab]."""
        if self._reader(start) is self._decode:
            return self._decode_runs.run(row, [token_ids], [start], wanted)
        logits = self._prefill_runs.run(row, [token_ids], [start], wanted)
        end = start + len(token_ids)
        self._num_prefilled[row] = end
        if not self._has_one_kv and (is_last or not self._prefill.past):
            hand_over(self._prefill_kv, self._decode_kv, row, end)
        return logits


def shares_kv(prefill: OpenGraph, decode: OpenGraph) -> bool:
    """Whether both graphs work on one KV cache."""
    is_alike = prefill.is_concatenating == decode.is_concatenating
    return is_alike and prefill.backend is decode.backend
