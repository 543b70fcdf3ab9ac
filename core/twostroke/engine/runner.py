"""Runs the two graphs: owns their sessions and the buffers of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Backend, Placement, Session
from twostroke.bundle.contract import LOGITS
from twostroke.bundle.manifest import Manifest
from twostroke.engine.bindings import StrokeBindings
from twostroke.engine.handover import HandOver, make_hand_over
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.types import Stroke, TokenId

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OpenStroke:
    """A stroke's session and the backend that made it."""

    backend: Backend
    session: Session


class Runner:
    """Feeds prompt chunks and decode batches to the sessions; called by one thread.

    Where both strokes have the same backend object they share one set of KV buffers, and a row
    never moves. Otherwise each has its own and a row is copied once, when its prefill ends.
    """

    def __init__(
        self,
        prefill: OpenStroke,
        decode: OpenStroke,
        manifest: Manifest,
        *,
        num_rows: int,
        capacity_tokens: int,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self.vocab_size = _vocab_size(decode.session, manifest)
        decode_kv = KVBuffers(decode.backend, decode.session, manifest, num_rows, capacity_tokens)
        prefill_kv = decode_kv
        self._hand_over: HandOver | None = None
        if prefill.backend is not decode.backend:
            prefill_kv = KVBuffers(
                prefill.backend, prefill.session, manifest, num_rows, capacity_tokens
            )
            self._hand_over = make_hand_over(prefill_kv, decode_kv)
        self._prefill_runs = StrokeBindings(
            prefill.backend, prefill.session, prefill_kv, self.vocab_size, max_kept=8 * num_rows
        )
        self._decode_runs = StrokeBindings(
            decode.backend, decode.session, decode_kv, self.vocab_size, max_kept=8 * num_rows
        )
        self.placements: Mapping[Stroke, Placement] = {
            Stroke.PREFILL: prefill.session.placement,
            Stroke.DECODE: decode.session.placement,
        }

    @property
    def max_span_rows(self) -> int | None:
        """How many rows one decode run may cover: 1 without row views, None for any number."""
        return None if self._decode.backend.has_row_views else 1

    def prefill(
        self, row: int, start: int, token_ids: Sequence[TokenId], *, is_last: bool
    ) -> Logits:
        """Writes a chunk at positions [start, start + len(token_ids)) of `row`.

        Answers the logits of the chunk's last token, [1, vocab], a view that the next run
        overwrites. Mutates the row; after the last chunk it is ready for `decode`.

        Raises:
            EngineError: the run failed; other rows are untouched.
        """
        logits = self._prefill_runs.run(row, [token_ids], [start], len(token_ids) - 1)
        if is_last and self._hand_over is not None:
            self._hand_over(row, start + len(token_ids))
        return logits

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
        return self._decode_runs.run(start_row, [(token,) for token in token_ids], past_lengths)

    def close(self) -> None:
        """Frees bindings and sessions. The backends stay open: whoever opened them closes them."""
        self._prefill_runs.close()
        self._decode_runs.close()
        self._prefill.session.close()
        self._decode.session.close()


def _vocab_size(session: Session, manifest: Manifest) -> int:
    """The width of the logits: what the graph declares, else what the manifest says."""
    declared = session.outputs[LOGITS].shape[-1]
    if isinstance(declared, int) and declared > 0:
        return declared
    return manifest.architecture.vocab_size
