"""Runs a folder's two graphs with ONNX Runtime on the CPU, for the checks at export only.

Serving has its own runner; this one is a page long so that a check shares no code with what it
checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from twostroke.bundle import contract
from twostroke.bundle.manifest import Dialect, KVLayer, graph_file
from twostroke.errors import ExportError
from twostroke.types import Stroke

Logits = npt.NDArray[np.float32]


class TwoGraphs:
    """Prefill and decode over one KV cache of `num_rows` rows; mutated by each call.

    The cache is [rows, kv_heads, capacity, head_dim] a layer and side: written in place by graphs
    of the fused dialect, whose rows may differ in length; handed in as far as it is filled and
    replaced by what comes back in the standard dialect, whose rows may not. Setting `lengths`
    back forgets what lies behind. Graphs are opened on first use.
    """

    def __init__(
        self,
        folder: Path,
        layers: Sequence[KVLayer],
        kv_dtype: str,
        *,
        num_rows: int = 1,
        capacity_tokens: int = 128,
        dialects: Mapping[Stroke, Dialect] | Dialect = "fused",
    ) -> None:
        chosen = dict.fromkeys(Stroke, dialects) if isinstance(dialects, str) else dialects
        self._folder = folder
        self._dialects = chosen
        self._sessions: dict[Stroke, ort.InferenceSession] = {}
        self._cache: dict[str, npt.NDArray[Any]] = {}
        self._present: dict[str, str] = {}
        for number, layer in enumerate(layers):
            shape = (num_rows, layer.num_kv_heads, capacity_tokens, layer.head_dim)
            pairs = zip(contract.past_names(number), contract.present_names(number), strict=True)
            for past, present in pairs:
                self._cache[past] = np.zeros(shape, kv_dtype)
                self._present[present] = past
        self.lengths = [0] * num_rows

    def close(self, stroke: Stroke) -> None:
        """Lets a graph and its weights go until it is used again."""
        self._sessions.pop(stroke, None)

    def prefill(self, rows: Sequence[Sequence[int]]) -> Logits:
        """Feeds one chunk to each row: logits [rows, vocab] of the last token of each.

        Shorter rows are padded on the right; a second chunk is only possible with a single row.
        """
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        last = np.array([[len(row) - 1] for row in rows], np.int64)
        logits = self._prefill(ids, [len(row) for row in rows], last)
        return logits[:, 0]

    def score(self, ids: Sequence[int]) -> Logits:
        """Feeds one chunk to a single row: logits [tokens, vocab], after each of its tokens."""
        every = np.arange(len(ids))[None]
        logits: Logits = self._prefill(np.array([ids], np.int64), [len(ids)], every)[0]
        return logits

    def _prefill(
        self, ids: npt.NDArray[np.int64], counts: list[int], wanted: npt.NDArray[np.int64]
    ) -> Logits:
        starts = np.array(self.lengths[: len(counts)], np.int64)[:, None]
        for number, count in enumerate(counts):
            self.lengths[number] += count
        return self._run(Stroke.PREFILL, ids, starts + np.arange(ids.shape[1]), wanted)

    def decode(self, ids: Sequence[int]) -> Logits:
        """Feeds one token to each row: logits [rows, vocab]."""
        positions = np.array(self.lengths, np.int64)[:, None]
        self.lengths = [length + 1 for length in self.lengths]
        logits = self._run(Stroke.DECODE, np.array(ids, np.int64)[:, None], positions, None)
        return logits[:, 0]

    def _run(
        self,
        stroke: Stroke,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        logit_index: npt.NDArray[np.int64] | None,
    ) -> Logits:
        feeds: dict[str, npt.NDArray[Any]] = {
            contract.INPUT_IDS: ids,
            contract.POSITION_IDS: positions,
            contract.SEQLENS_K: np.array(self.lengths, np.int32) - 1,
            contract.TOTAL_SEQUENCE_LENGTH: np.array(max(self.lengths), np.int32),
        }
        if logit_index is not None:
            feeds[contract.LOGIT_INDEX] = logit_index
        session = self._session(stroke)
        if self._dialects[stroke] == "standard":
            return self._concatenating(session, feeds, int(positions[0, 0]))
        return self._in_place(session, feeds)

    def _session(self, stroke: Stroke) -> ort.InferenceSession:
        if stroke not in self._sessions:
            dialect = self._dialects[stroke]
            self._sessions[stroke] = _open(self._folder / graph_file(stroke, dialect), dialect)
        return self._sessions[stroke]

    def _in_place(
        self, session: ort.InferenceSession, feeds: dict[str, npt.NDArray[Any]]
    ) -> Logits:
        feeds |= self._cache
        binding = session.io_binding()
        # Bound values alias these arrays: they must outlive the run.
        values = {
            argument.name: ort.OrtValue.ortvalue_from_numpy(feeds[argument.name])
            for argument in session.get_inputs()
        }
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for present, past in self._present.items():
            binding.bind_ortvalue_output(present, values[past])
        binding.bind_output(contract.LOGITS)
        session.run_with_iobinding(binding)
        logits: Logits = binding.get_outputs()[-1].numpy()
        return logits

    def _concatenating(
        self, session: ort.InferenceSession, feeds: dict[str, npt.NDArray[Any]], num_past: int
    ) -> Logits:
        num_rows = feeds[contract.INPUT_IDS].shape[0]
        feeds |= {name: cache[:num_rows, :, :num_past] for name, cache in self._cache.items()}
        wanted = [argument.name for argument in session.get_inputs()]
        names = [contract.LOGITS, *self._present]
        logits, *present = session.run(names, {name: feeds[name] for name in wanted})
        for past, states in zip(self._present.values(), present, strict=True):
            self._cache[past][:num_rows, :, : states.shape[2]] = states
        answer: Logits = logits
        return answer


def _open(path: Path, dialect: Dialect) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Two pools that spin would fight for the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if dialect == "standard":  # weights are dequantised at each step, unless it is done at load
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if b"MatMulNBits" not in path.read_bytes():
        # Floats multiply as fast unpacked, and stay in the mapped file instead of beside it.
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a type for each cause, with no base of their own
        reason = str(error).strip().splitlines()[0][:300]
        raise ExportError(
            f"{path.name} was made, but ONNX Runtime cannot load it on the CPU ({reason}), so it "
            f"cannot be verified and nothing was written; please report the architecture."
        ) from error
