"""The echo backend's session: what its "graphs" compute."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Array, Buffer, Placement, TensorSpec
from twostroke.bundle.contract import (
    ATTENTION_MASK,
    INPUT_IDS,
    LOGIT_INDEX,
    LOGITS,
    NUM_LOGITS_TO_KEEP,
    POSITION_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
    past_names,
    present_names,
)
from twostroke.errors import BackendError, EngineError
from twostroke.testing.echo_graph import EchoGraph, echo_logits
from twostroke.types import Stroke

if TYPE_CHECKING:
    from twostroke.testing.echo import EchoBackend, EchoBuffer


class EchoSession:
    """One stroke of an echo bundle."""

    def __init__(self, backend: EchoBackend, graph: EchoGraph, stroke: Stroke) -> None:
        self.graph = graph
        self.stroke = stroke
        self.backend = backend
        self._is_open = True
        self.inputs: Mapping[str, TensorSpec] = _inputs(graph, stroke)
        self.outputs: Mapping[str, TensorSpec] = _outputs(graph, stroke)
        self.placement = Placement(requested="echo", nodes={"echo": 1})

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> EchoBinding:
        """Ties buffers to the declared tensors.

        Raises:
            BackendError: a missing or unknown tensor, or a present that is not its past's buffer.
        """
        if set(inputs) != set(self.inputs) or set(outputs) != set(self.outputs):
            wrong = (set(inputs) ^ set(self.inputs)) | (set(outputs) ^ set(self.outputs))
            raise BackendError(f"echo: bound tensors differ from the declared ones: {wrong}")
        is_fused = self.graph.dialect == "fused"
        for layer in range(self.graph.num_layers):
            for past, present in zip(past_names(layer), present_names(layer), strict=True):
                if (inputs[past] is outputs[present]) != is_fused:
                    must = "must" if is_fused else "must not"
                    raise BackendError(f"echo: {past} and {present} {must} be the same buffer")
        return EchoBinding(self, _arrays(inputs), _arrays(outputs))

    def close(self) -> None:
        """Frees the session; closing twice is harmless."""
        self.backend.num_open_sessions -= self._is_open
        self._is_open = False

    def start_run(
        self, num_tokens: int, is_cut: threading.Event, *, is_verification: bool = False
    ) -> bool:
        """Counts a run, waits and fails as the options say; True where its logits must be NaN.

        A verification waits as long as its tokens would take in decode, so that it never pays.

        Raises:
            EngineError: also where `is_cut` is set while it waits.
        """
        if not self._is_open:
            raise EngineError("echo: a run on a session that was closed")
        options, is_decode = self.backend.options, self.stroke is Stroke.DECODE
        number = self.backend.num_runs[self.stroke]
        self.backend.num_runs[self.stroke] += 1
        delay_s_per_token = options.prefill_delay_s_per_token + self.graph.read_delay_s_per_token
        delay_s = delay_s_per_token * num_tokens
        if is_decode or is_verification:
            delay_s = options.step_delay_s * (1 if is_decode else num_tokens)
        self._wait(delay_s, is_cut)
        if number in (options.fail_decode_runs if is_decode else options.fail_prefill_runs):
            raise EngineError(f"echo: {self.stroke} run {number} fails, as its options ask.")
        return is_decode and number in options.nan_decode_runs

    def _wait(self, delay_s: float, is_cut: threading.Event) -> None:
        if delay_s and is_cut.wait(delay_s):
            raise EngineError("echo: the run was interrupted")


class EchoBinding:
    """Buffers tied to a session."""

    def __init__(
        self, session: EchoSession, inputs: dict[str, Array], outputs: dict[str, Array]
    ) -> None:
        self._session = session
        self._is_cut = threading.Event()
        self._inputs = inputs
        self._logits = outputs[LOGITS]  # [batch, k, vocab]; k is 1 in decode
        layers = range(session.graph.num_layers)
        self._past = [inputs[name] for layer in layers for name in past_names(layer)]
        # [batch, kv_heads, capacity, head_dim], the very arrays of the past in the fused dialect
        self._present = [outputs[name] for layer in layers for name in present_names(layer)]

    def run(self) -> None:
        """Writes the new tokens to the rows and answers logits from all that they hold."""
        ids = self._inputs[INPUT_IDS]  # [batch, sequence]
        num_rows, num_new = ids.shape
        is_cut = self._is_cut = threading.Event()  # its own, so that no other run is ended
        totals = self._totals(num_rows, num_new)  # [batch]
        is_begun = int(totals[0]) > num_new
        is_nan = self._session.start_run(
            num_new, is_cut, is_verification=is_begun and len(self._wanted(0, num_new)) > 1
        )
        self._check(ids, totals)
        if self._session.graph.dialect == "standard":
            for past, present in zip(self._past, self._present, strict=True):
                present[:, :, :-num_new] = past
        for row in range(num_rows):
            total = int(totals[row])
            for side in self._present:
                side[row, :, total - num_new : total] = ids[row][None, :, None]
            for number, index in enumerate(self._wanted(row, num_new)):
                end = total - num_new + index + 1
                self._logits[row, number] = np.nan if is_nan else self._answer(row, end)

    def interrupt(self) -> None:
        """Ends the run in progress while it waits for its delay; any thread."""
        self._is_cut.set()

    def _wanted(self, row: int, num_new: int) -> list[int]:
        """The positions within the chunk whose logits are answered."""
        if LOGIT_INDEX in self._inputs:
            return [int(index) for index in self._inputs[LOGIT_INDEX][row]]  # [k]
        if NUM_LOGITS_TO_KEEP in self._inputs:
            return list(range(num_new - int(self._inputs[NUM_LOGITS_TO_KEEP]), num_new))
        return list(range(num_new))

    def _totals(self, num_rows: int, num_new: int) -> Array:
        """Tokens in each row after this run, [batch]."""
        if self._session.graph.dialect == "standard":
            return np.full(num_rows, self._past[0].shape[2] + num_new)
        if ATTENTION_MASK in self._inputs:
            return np.asarray(self._inputs[ATTENTION_MASK].sum(axis=1))
        return np.asarray(self._inputs[SEQLENS_K] + 1)

    def _check(self, ids: Array, totals: Array) -> None:
        num_rows, num_new = ids.shape
        capacity = self._present[0].shape[2]
        if num_rows > 1 and num_new > 1 and totals.max() > num_new:
            raise EngineError("echo: a chunk that follows others must be alone in its run")
        if ids.min() < 0 or ids.max() >= self._session.graph.vocab_size:
            raise EngineError(f"echo: token ids from {ids.min()} to {ids.max()}")
        if totals.min() < num_new or totals.max() > capacity:
            raise EngineError(f"echo: rows of {totals.min()} to {totals.max()} in {capacity}")
        if self._session.graph.dialect == "standard" and (num_rows > 1 or totals[0] != capacity):
            raise EngineError(f"echo: {num_rows} rows of {totals} tokens in {capacity} concatenate")
        longest = self._inputs.get(TOTAL_SEQUENCE_LENGTH, totals.max())
        if int(longest) != totals.max():
            raise EngineError("echo: total_sequence_length is not that of the longest row")
        self._check_positions(num_new, totals)

    def _check_positions(self, num_new: int, totals: Array) -> None:
        if POSITION_IDS in self._inputs:
            expected = (totals - num_new)[:, None] + np.arange(num_new)
            if not np.array_equal(self._inputs[POSITION_IDS], expected):
                raise EngineError("echo: position_ids do not follow what the rows hold")
        if ATTENTION_MASK in self._inputs:
            is_held = np.arange(totals.max()) < totals[:, None]
            if not np.array_equal(self._inputs[ATTENTION_MASK], is_held):
                raise EngineError("echo: attention_mask is not ones, then zeros")

    def _answer(self, row: int, end: int) -> npt.NDArray[np.float32]:
        """Logits [vocab] for the first `end` tokens of a row."""
        first = self._present[0][row, 0, :end, 0]  # [end]
        if any(not np.array_equal(side[row, -1, :end, -1], first) for side in self._present[1:]):
            raise EngineError(f"echo: the layers of row {row} disagree about its tokens")
        return echo_logits(self._session.graph, first.astype(np.int64))


def _arrays(buffers: Mapping[str, Buffer]) -> dict[str, Array]:
    return {name: cast("EchoBuffer", buffer).values for name, buffer in buffers.items()}


def _inputs(graph: EchoGraph, stroke: Stroke) -> dict[str, TensorSpec]:
    sequence = 1 if stroke is Stroke.DECODE else "sequence"
    shapes: dict[str, tuple[tuple[int | str, ...], str]] = {
        INPUT_IDS: (("batch", sequence), "int64")
    }
    if graph.attention_mask:
        shapes[ATTENTION_MASK] = (("batch", "total"), "int64")
    elif graph.dialect == "fused":
        shapes |= {SEQLENS_K: (("batch",), "int32"), TOTAL_SEQUENCE_LENGTH: ((), "int32")}
    if graph.position_ids:
        shapes[POSITION_IDS] = (("batch", sequence), "int64")
    if graph.logits == "tail":
        shapes[NUM_LOGITS_TO_KEEP] = ((), "int64")
    elif graph.logits == "chosen" and stroke is Stroke.PREFILL:
        shapes[LOGIT_INDEX] = (("batch", "k"), "int64")
    for layer in range(graph.num_layers):
        for name in past_names(layer):
            shapes[name] = _kv_shape(graph), "float32"
    return {name: TensorSpec(name, *rest) for name, rest in shapes.items()}


def _outputs(graph: EchoGraph, stroke: Stroke) -> dict[str, TensorSpec]:
    rows = 1 if graph.logits == "chosen" and stroke is Stroke.DECODE else "positions"
    specs = {LOGITS: TensorSpec(LOGITS, ("batch", rows, graph.vocab_size), "float32")}
    for layer in range(graph.num_layers):
        for name in present_names(layer):
            specs[name] = TensorSpec(name, _kv_shape(graph), "float32")
    return specs


def _kv_shape(graph: EchoGraph) -> tuple[int | str, ...]:
    return ("batch", graph.num_kv_heads, "capacity", graph.head_dim)
