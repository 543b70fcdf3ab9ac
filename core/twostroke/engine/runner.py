"""Runs the two graphs: owns their sessions and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from twostroke.backends.protocol import Placement
from twostroke.bundle.manifest import Manifest
from twostroke.engine.bindings import InPlaceRuns
from twostroke.engine.graph_pair import GraphPair
from twostroke.engine.graph_runs import open_arrays, open_runs
from twostroke.engine.handover import HandOver, check_hand_over, hand_over_way, shares_kv
from twostroke.engine.kv_extent import Extent
from twostroke.engine.kv_stores import KVStores
from twostroke.engine.logits import Logits
from twostroke.engine.open_graph import OpenGraph
from twostroke.engine.prefix_store import Contents
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.row_bytes import pack_row, unpack_row
from twostroke.types import Stroke, TokenId


class Runner:
    """Feeds prompt chunks and decode batches to the sessions; called by one thread.

    Where both graphs are on the same backend object and treat the KV cache alike they share it,
    and a row never moves. Otherwise each has its own and a row is copied when its prefill ends.
    `chunks_prompts` False: a prompt must be given whole. `full` is all the room that the KV
    cache may ever need. It begins with `extent` of that where untouched memory is not free.
    """

    def __init__(
        self,
        prefill: OpenGraph,
        decode: OpenGraph,
        manifest: Manifest,
        *,
        full: Extent,
        extent: Extent | None = None,
    ) -> None:
        check_hand_over(prefill, decode)
        self._prefill, self._decode = prefill, decode
        self._graphs = GraphPair(prefill, decode)
        self._layers = manifest.kv_layers
        self.vocab_size = decode.vocab_size or manifest.architecture.vocab_size
        self.chunks_prompts = prefill.takes_chunks or decode.takes_chunks

        layers = manifest.kv_layers
        decode_kv = open_arrays(decode, layers, full, extent)
        prefill_kv = decode_kv
        if not shares_kv(prefill, decode):
            prefill_kv = open_arrays(prefill, layers, full, extent)
        self._kv = KVStores(prefill_kv, decode_kv, full.num_rows)
        self.hand_over_way = hand_over_way(prefill, decode)
        self._prefill_runs = open_runs(prefill, prefill_kv, self.vocab_size, full.num_rows)
        self._decode_runs = open_runs(decode, decode_kv, self.vocab_size, full.num_rows)
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

    @property
    def replays_decode(self) -> bool:
        """Whether decode runs are recorded, so that they should be of few kinds; see `block_of`."""
        return self._decode.replays_runs

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
        self._note_decoded(start_row, past_lengths)
        return logits[:, -1]

    @property
    def reduces_logits(self) -> bool:
        """Whether `decode_reduced` can be used."""
        return isinstance(self._decode_runs, InPlaceRuns) and self._decode.is_reducing

    def decode_reduced(
        self,
        start_row: int,
        token_ids: Sequence[TokenId],
        past_lengths: Sequence[int],
        inverse_temperatures: Sequence[float],
    ) -> ReducedLogits:
        """As `decode`, with the logits left on the device; `inverse_temperatures` has one a row.

        Only where `reduces_logits`. The answer is valid until the next run.

        Raises:
            EngineError: the run failed; rows outside of the span are untouched.
        """
        assert isinstance(self._decode_runs, InPlaceRuns)
        fed = [(token,) for token in token_ids]
        logits = self._decode_runs.run_reduced(start_row, fed, past_lengths, inverse_temperatures)
        self._note_decoded(start_row, past_lengths)
        return logits

    def _note_decoded(self, start_row: int, past_lengths: Sequence[int]) -> None:
        for row, past_length in enumerate(past_lengths, start_row):
            self._kv.wrote(Stroke.DECODE, row, past_length, past_length + 1)

    def copy_row(self, source_row: int, target_row: int, num_tokens: int) -> None:
        """Makes the first tokens of one row those of another, ready to `prefill` behind them.

        Mutates the target row. `prefill` alone may follow in it, not `decode`.

        Raises:
            EngineError: the device failed; the target row's contents are undefined.
        """
        stroke = self._graphs.reading_stroke(num_tokens)
        self._kv.copy_row(stroke, source_row, target_row, num_tokens)

    def take_hand_over(self) -> HandOver | None:
        """What was handed over between the caches since the last call; None: nothing. Forgets it.

        Part of the runs and copies that needed it.
        """
        num_bytes, seconds = self._kv.take_handed()
        return HandOver(num_bytes, seconds, self.hand_over_way) if num_bytes else None

    def save_row(self, row: int, num_tokens: int) -> Contents:
        """A copy of the first tokens of a row, for `restore_row`; the row may be written then."""
        values = self._kv.read_row(row, num_tokens)
        return pack_row(values, self._layers, self._decode.kv_dtype, num_tokens)

    def restore_row(self, row: int, contents: Contents, num_stored: int, num_tokens: int) -> None:
        """Makes the first of the `num_stored` tokens in `contents` a row's, as `copy_row` does.

        Raises:
            ValueError: the contents do not hold as much.
        """
        stroke = self._graphs.reading_stroke(num_tokens)
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
        if can_go_on and self._graphs.reader(start).logit_rows.may_be_several:
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
        return self._graphs.verification_obstacle(
            chunks_prompts=self.chunks_prompts, has_one_cache=self._kv.is_one
        )

    @property
    def scores_at_once(self) -> bool:
        """Whether `score` reads tokens as `prefill` does, rather than one by one."""
        return self.chunks_prompts and self._graphs.reader(1).logit_rows.may_be_several

    @property
    def computes_floats_alike(self) -> bool:
        """Whether both graphs write the same to the KV cache but for the last bits of floats."""
        return self._graphs.compute_floats_alike

    @property
    def verifies_floats(self) -> bool:
        """Whether the weights are floats, whose products come out alike however many they are."""
        return self._graphs.verifies_floats

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

    @property
    def extent(self) -> Extent:
        """The rows that may be used, and the tokens that each has room for."""
        return self._kv.extent

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """Makes room for `extent` where memory costs what is allocated; elsewhere all is there.

        Rows keep their first `lengths[row]` tokens, 0 for those that go. One array of a layer is
        replaced at a time, and every run is bound anew when it is next asked for.

        Raises:
            OutOfMemoryError, BackendError: the device refused. `extent` says what is there then:
                what was there before, or else no less than every row needs to keep its tokens.
        """
        self._prefill_runs.unbind()
        self._decode_runs.unbind()
        self._kv.resize(extent, lengths)

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
        stroke = self._graphs.reading_stroke(start)
        self._kv.need(stroke, row, start)
        self._kv.wrote(stroke, row, start, start)  # whatever the run leaves if it fails
        runs = self._decode_runs if stroke is Stroke.DECODE else self._prefill_runs
        logits = runs.run(row, [token_ids], [start], wanted)
        end = start + len(token_ids)
        self._kv.wrote(stroke, row, start, end)
        if is_last or not self._prefill.past:
            self._kv.need(Stroke.DECODE, row, end)
        return logits
