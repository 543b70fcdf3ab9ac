"""Runs the two graphs: owns their sessions and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from twostroke.backends.protocol import Placement
from twostroke.bundle.manifest import Manifest
from twostroke.engine.bindings import InPlaceRuns
from twostroke.engine.concatenating import ConcatenatingRuns
from twostroke.engine.handover import HandOver, check_hand_over, hand_over_way, shares_kv
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.kv_stores import KVStores
from twostroke.engine.logits import Logits
from twostroke.engine.open_graph import OpenGraph
from twostroke.engine.row_bytes import pack_row, unpack_row
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

    def interrupt(self) -> bool: ...

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
        self._layers = manifest.kv_layers
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

        decode_kv = open_kv(decode)
        prefill_kv = decode_kv if shares_kv(prefill, decode) else open_kv(prefill)
        self._kv = KVStores(prefill_kv, decode_kv, num_rows)
        self.hand_over_way = hand_over_way(prefill, decode)
        self._prefill_runs = open_runs(prefill, prefill_kv)
        self._decode_runs = open_runs(decode, decode_kv)
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
            self._kv.wrote(Stroke.DECODE, row, past_length, past_length + 1)
        return logits[:, -1]

    def copy_row(self, source_row: int, target_row: int, num_tokens: int) -> None:
        """Makes the first tokens of one row those of another, ready to `prefill` behind them.

        Mutates the target row. `prefill` alone may follow in it, not `decode`.

        Raises:
            EngineError: the device failed; the target row's contents are undefined.
        """
        stroke = self._stroke_of(self._reader(num_tokens))
        self._kv.copy_row(stroke, source_row, target_row, num_tokens)

    def take_hand_over(self) -> HandOver | None:
        """What was handed over between the caches since the last call; None: nothing. Forgets it.

        Part of the runs and copies that needed it.
        """
        num_bytes, seconds = self._kv.take_handed()
        return HandOver(num_bytes, seconds, self.hand_over_way) if num_bytes else None

    def save_row(self, row: int, num_tokens: int) -> bytes:
        """The first tokens of a row, for `restore_row`."""
        return pack_row(self._kv.read_row(row, num_tokens))

    def restore_row(self, row: int, contents: bytes, num_stored: int, num_tokens: int) -> None:
        """Makes the first of the `num_stored` tokens in `contents` a row's, as `copy_row` does.

        Raises:
            ValueError: the contents do not hold as much.
        """
        stroke = self._stroke_of(self._reader(num_tokens))
        self._kv.fill_row(
            stroke,
            row,
            unpack_row(contents, self._layers, self._decode.kv_dtype, num_stored, num_tokens),
            num_tokens,
        )

    def score(self, row: int, start: int, token_ids: Sequence[TokenId]) -> Logits:
        """Writes a chunk as `prefill` does, and answers the logits of each of its positions.

        Row i of the answer, [len(token_ids), vocab], says what follows token_ids[i]. It is a
        view that the next run overwrites. The row must hold `start` tokens and is ready for
        `decode` afterwards. Where the graphs cannot answer more than one position in a run, the
        tokens go through decode one by one.

        Raises:
            EngineError: a run failed; other rows are untouched.
        """
        can_go_on = start == 0 or self.chunks_prompts
        if can_go_on and self._reader(start).logit_rows.may_be_several:
            logits = self._read(row, start, token_ids, range(len(token_ids)), is_last=True)
            return logits.reshape(len(token_ids), -1)
        answers = [
            self.decode(row, [token], [start + offset]).copy()
            for offset, token in enumerate(token_ids)
        ]
        return np.concatenate(answers)

    def interrupt(self) -> bool:
        """Ends the run in progress, which then raises EngineError, where the backend can.

        Any thread; does nothing and answers False where nothing runs or nothing can be ended. The
        rows of that run hold what they held.
        """
        return any([self._prefill_runs.interrupt(), self._decode_runs.interrupt()])

    def verification_obstacle(self) -> str | None:
        """Why `verify` cannot be used, as a sentence; None where it can."""
        reader = self._reader(1)
        if not reader.takes_chunks or not self.chunks_prompts:
            return f"{reader.name} cannot add several tokens to what a row holds"
        if not reader.logit_rows.may_be_several:
            return f"{reader.name} answers the logits of one position only"
        if reader is self._decode:
            return None
        if not self._kv.is_one:
            return "prefill and decode have a KV cache each"
        if reader.fact.quantisation != self._decode.fact.quantisation:
            return "prefill and decode differ in precision, so that the answer would change"
        return None

    @property
    def scores_at_once(self) -> bool:
        """Whether `score` reads tokens as `prefill` does, rather than one by one."""
        return self.chunks_prompts and self._reader(1).logit_rows.may_be_several

    @property
    def computes_floats_alike(self) -> bool:
        """Whether both graphs are of float weights and on one device, so that what either writes
        to the KV cache differs in the last bits only.
        """
        prefill, decode = self._prefill, self._decode
        is_one_kind = prefill.backend.name == decode.backend.name
        is_one_kind &= prefill.backend.device == decode.backend.device
        precision = prefill.fact.quantisation.precision
        return is_one_kind and self.verifies_floats and precision.startswith(("fp", "bf"))

    @property
    def verifies_floats(self) -> bool:
        """Whether the weights are floats, whose products come out alike however many they are."""
        return self._decode.fact.quantisation.precision.startswith(("fp", "bf"))

    def verify(self, row: int, start: int, token_ids: Sequence[TokenId]) -> Logits:
        """Writes a sequence's newest token and a draft at positions from `start` of its row.

        Row i of the answer, [len(token_ids), vocab], says what follows token_ids[i]; it is a view
        that the next run overwrites. What of the draft is not taken is overwritten by what comes
        at its positions instead. Only where `verification_obstacle` is None.

        Raises:
            EngineError: the run failed; other rows are untouched.
        """
        logits = self._read(row, start, token_ids, range(len(token_ids)), is_last=True)
        return logits.reshape(len(token_ids), -1)

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row to the system; they stay.

        Mutates the row. False where a backend cannot: the row then keeps what it took.
        """
        return self._kv.give_back(row, num_tokens)

    def check(self, lengths: Sequence[int]) -> None:
        """Proves that the caches hold `lengths[row]` tokens of each row. Raises AssertionError."""
        self._kv.check(lengths)

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
        stroke = self._stroke_of(self._reader(start))
        self._kv.need(stroke, row, start)
        self._kv.wrote(stroke, row, start, start)  # whatever the run leaves if it fails
        runs = self._decode_runs if stroke is Stroke.DECODE else self._prefill_runs
        logits = runs.run(row, [token_ids], [start], wanted)
        end = start + len(token_ids)
        self._kv.wrote(stroke, row, start, end)
        if is_last or not self._prefill.past:
            self._kv.need(Stroke.DECODE, row, end)
        return logits

    def _stroke_of(self, graph: OpenGraph) -> Stroke:
        return Stroke.DECODE if graph is self._decode else Stroke.PREFILL
