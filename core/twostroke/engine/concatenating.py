"""Runs of a graph that answers a longer KV cache for each one it is given: one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.backends.capabilities import InterruptibleBinding
from twostroke.backends.protocol import Binding
from twostroke.bundle.contract import LOGITS
from twostroke.engine.kv_buffers import present_of
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.logits import LogitBuffers, Logits
from twostroke.engine.open_graph import OpenGraph
from twostroke.engine.small_inputs import SmallInputs
from twostroke.types import TokenId


class ConcatenatingRuns:
    """Binds each run anew, because the shapes of past and present change with every token."""

    def __init__(self, graph: OpenGraph, kv: ConcatenatedKV, vocab_size: int) -> None:
        self._graph = graph
        self._kv = kv
        self._running: Binding | None = None
        self._logits = LogitBuffers(graph, vocab_size)

    def run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int] = (0,),
    ) -> Logits:
        """As `InPlaceRuns.run`, for a single row. A run that fails leaves the row as it was.

        Raises:
            EngineError: the run failed.
        """
        (ids,), (past_length,) = token_ids, past_lengths
        total = past_length + len(ids)
        inputs = SmallInputs(self._graph, 1, len(ids), len(wanted), total)
        inputs.write(token_ids, past_lengths, wanted)
        past = self._kv.past(start_row, past_length) if self._graph.past else {}
        present = self._kv.present(total)
        logits = self._logits.of(1, len(ids), wanted)
        binding = self._graph.session.bind(
            {**inputs.buffers, **past}, {LOGITS: logits, **present_of(present)}
        )
        self._running = binding
        try:
            binding.run()
        finally:
            self._running = None
        self._kv.keep(start_row, total)
        return self._logits.answer(logits, wanted)

    def interrupt(self) -> bool:
        """Ends the run in progress; any thread. False where none is, or the backend cannot."""
        running = self._running
        if isinstance(running, InterruptibleBinding):
            running.interrupt()
            return True
        return False

    def unbind(self) -> None:
        """Nothing to drop: each run is bound anew."""

    def close(self) -> None:
        """Frees the memory of the logits."""
        self._logits.clear()
