"""Runs of a graph that writes its tokens into the KV cache in place.

The cache is bound once for each span of rows; a run changes a few small buffers. Where the cache
gets another size its arrays are new ones, and so are the bindings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.backends.capabilities import InterruptibleBinding, Staged
from twostroke.backends.protocol import Binding, Buffer
from twostroke.backends.reduced import REDUCED_OUTPUTS
from twostroke.bundle.contract import ATTENTION_MASK, LOGITS
from twostroke.engine.kv_buffers import KVBuffers, present_of
from twostroke.engine.logits import MAX_KEPT_POSITIONS, LogitBuffers, Logits
from twostroke.engine.open_graph import LogitRows, OpenGraph
from twostroke.engine.reduced_logits import ReducedLogits
from twostroke.engine.small_inputs import SmallInputs
from twostroke.engine.staging import stage
from twostroke.types import TokenId


@dataclass(frozen=True, slots=True)
class BoundRun:
    """One binding with its small inputs and its logits, [batch, positions, vocab].

    `reduced` is what a graph that reduces them answers beside.
    """

    binding: Binding
    inputs: SmallInputs
    logits: Buffer
    reduced: Staged | None = None


class InPlaceRuns:
    """Makes the bindings of one graph over one set of KV buffers and keeps the recent ones.

    A binding belongs to a span of rows and a number of tokens a row; decode has one for each
    span, prefill one for each row, chunk length and number of wanted logits (a few, or they are not
    kept), of which the `max_kept` last used stay.
    """

    def __init__(self, graph: OpenGraph, kv: KVBuffers, vocab_size: int, max_kept: int) -> None:
        self._graph = graph
        self._kv = kv
        self._max_kept = max_kept
        self._running: Binding | None = None
        self._kept: OrderedDict[tuple[int, int, int, int], BoundRun] = OrderedDict()
        self._logits = LogitBuffers(graph, vocab_size)
        self._has_mask = ATTENTION_MASK in graph.small_inputs
        self._answers_all = graph.logit_rows is LogitRows.ALL

    def run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int] = (0,),
    ) -> Logits:
        """Runs the graph for rows [start_row, start_row + batch).

        `token_ids` is [batch, sequence], `past_lengths` the tokens already in each row, `wanted`
        neighbouring positions of the chunk. Answers their logits, [batch, len(wanted), vocab],
        perhaps as a view that the next run overwrites. Mutates those rows of the KV buffers.

        Raises:
            EngineError: the run failed.
        """
        bound = self._run(start_row, token_ids, past_lengths, wanted)
        return self._logits.answer(bound.logits, wanted)

    def run_reduced(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        inverse_temperatures: Sequence[float],
    ) -> ReducedLogits:
        """As `run`, of a graph that reduces its logits: what it answers, until the next run."""
        bound = self._run(start_row, token_ids, past_lengths, (0,), inverse_temperatures)
        assert bound.reduced is not None
        bound.reduced.fetch()
        has_row_views = self._graph.backend.has_row_views
        return ReducedLogits(bound.reduced.values, bound.logits, has_row_views=has_row_views)

    def _run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int],
        inverse_temperatures: Sequence[float] | None = None,
    ) -> BoundRun:
        count, num_new = len(token_ids), len(token_ids[0])
        num_positions = num_new if self._answers_all else len(wanted)
        is_long = num_positions > MAX_KEPT_POSITIONS
        if self._has_mask or is_long:  # another mask each time, or logits too large to be kept
            total = max(past_lengths) + num_new
            bound = self._bind(start_row, count, num_new, wanted, total)
        else:
            bound = self._bound(start_row, count, num_new, wanted)
        bound.inputs.write(token_ids, past_lengths, wanted, inverse_temperatures)
        self._running = bound.binding
        try:
            bound.binding.run()
        finally:
            self._running = None
        return bound

    def interrupt(self) -> bool:
        """Ends the run in progress; any thread. False where none is, or the backend cannot."""
        running = self._running
        if isinstance(running, InterruptibleBinding):
            running.interrupt()
            return True
        return False

    def unbind(self) -> None:
        """Drops every binding, before the KV buffers change or their session is closed."""
        self._kept.clear()

    def close(self) -> None:
        """Drops every binding and the memory of the logits."""
        self.unbind()
        self._logits.clear()

    def _bound(self, start_row: int, count: int, num_new: int, wanted: Sequence[int]) -> BoundRun:
        key = (start_row, count, num_new, len(wanted))
        bound = self._kept.get(key)
        if bound is None:
            while len(self._kept) >= self._max_kept:
                self._kept.popitem(last=False)
            bound = self._kept[key] = self._bind(start_row, count, num_new, wanted, num_new)
        self._kept.move_to_end(key)
        return bound

    def _bind(
        self, start_row: int, count: int, num_new: int, wanted: Sequence[int], total: int
    ) -> BoundRun:
        room = self._kv.extent.row_tokens
        inputs = SmallInputs(self._graph, count, num_new, len(wanted), total, room)
        past = self._kv.span(start_row, count)
        logits = self._logits.of(count, num_new, wanted)
        reduced = stage_reduced(self._graph, count) if self._graph.is_reducing else None
        outputs = {LOGITS: logits, **present_of(past), **(reduced.buffers if reduced else {})}
        binding = self._graph.session.bind({**inputs.buffers, **past}, outputs)
        return BoundRun(binding, inputs, logits, reduced)


def stage_reduced(graph: OpenGraph, count: int) -> Staged:
    """Room for what a graph that reduces its logits answers for `count` rows.

    Raises:
        OutOfMemoryError: the device refuses the bytes.
    """
    specs = [graph.session.outputs[name] for name in REDUCED_OUTPUTS]
    sizes = {spec.name: (int(size) for size in spec.shape[1:]) for spec in specs}
    return stage(
        graph.backend,
        {spec.name: ((count, *sizes[spec.name]), spec.dtype) for spec in specs},
    )
