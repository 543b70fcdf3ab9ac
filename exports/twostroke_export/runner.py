"""Runs a folder's two graphs with ONNX Runtime on the CPU, for the checks at export only.

Serving has its own runner; this one is a page long so that a check shares no code with what it
checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from twostroke.bundle import contract
from twostroke.bundle.manifest import KVLayer
from twostroke.types import Stroke

Logits = npt.NDArray[np.float32]


class TwoGraphs:
    """Prefill and decode over one KV cache of `num_rows` rows; mutated by each call.

    The cache is [rows, kv_heads, capacity, head_dim] a layer and side, written in place.
    """

    def __init__(
        self,
        folder: Path,
        layers: Sequence[KVLayer],
        kv_dtype: str,
        *,
        num_rows: int = 1,
        capacity_tokens: int = 128,
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Two pools that spin would fight for the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._sessions = {
            stroke: ort.InferenceSession(
                str(folder / f"{stroke}.onnx"), options, providers=["CPUExecutionProvider"]
            )
            for stroke in Stroke
        }
        self._cache: dict[str, npt.NDArray[Any]] = {}
        self._present: dict[str, str] = {}
        for number, layer in enumerate(layers):
            shape = (num_rows, layer.num_kv_heads, capacity_tokens, layer.head_dim)
            pairs = zip(contract.past_names(number), contract.present_names(number), strict=True)
            for past, present in pairs:
                self._cache[past] = np.zeros(shape, kv_dtype)
                self._present[present] = past
        self.lengths = [0] * num_rows

    def prefill(self, rows: Sequence[Sequence[int]]) -> Logits:
        """Feeds one chunk to each row: logits [rows, vocab] of the last token of each.

        Shorter rows are padded on the right; a second chunk is only possible with a single row.
        """
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        starts = np.array(self.lengths[: len(rows)], np.int64)[:, None]
        for number, row in enumerate(rows):
            self.lengths[number] += len(row)
        last = np.array([len(row) - 1 for row in rows], np.int64)
        return self._run(Stroke.PREFILL, ids, starts + np.arange(width), last)

    def decode(self, ids: Sequence[int]) -> Logits:
        """Feeds one token to each row: logits [rows, vocab]."""
        positions = np.array(self.lengths, np.int64)[:, None]
        self.lengths = [length + 1 for length in self.lengths]
        return self._run(Stroke.DECODE, np.array(ids, np.int64)[:, None], positions, None)

    def _run(
        self,
        stroke: Stroke,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        logit_index: npt.NDArray[np.int64] | None,
    ) -> Logits:
        session = self._sessions[stroke]
        feeds: dict[str, npt.NDArray[Any]] = {
            contract.INPUT_IDS: ids,
            contract.POSITION_IDS: positions,
            contract.SEQLENS_K: np.array(self.lengths, np.int32) - 1,
            contract.TOTAL_SEQUENCE_LENGTH: np.array(max(self.lengths), np.int32),
            **self._cache,
        }
        if logit_index is not None:
            feeds[contract.LOGIT_INDEX] = logit_index[:, None]
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
        return logits[:, 0]
