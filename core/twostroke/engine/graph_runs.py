"""The runs of one graph over one KV cache, in whichever of the two ways the graph keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twostroke.bundle.manifest import KVLayer
from twostroke.engine.bindings import InPlaceRuns
from twostroke.engine.concatenating import ConcatenatingRuns
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.kv_extent import Extent
from twostroke.engine.logits import Logits
from twostroke.engine.open_graph import OpenGraph
from twostroke.types import TokenId

KVArrays = KVBuffers | ConcatenatedKV


class GraphRuns(Protocol):
    """The runs of one graph; see `InPlaceRuns`."""

    def run(
        self,
        start_row: int,
        token_ids: Sequence[Sequence[TokenId]],
        past_lengths: Sequence[int],
        wanted: Sequence[int] = (0,),
    ) -> Logits:
        """Runs the graph for neighbouring rows."""
        ...

    def interrupt(self) -> bool:
        """Ends the run in progress; any thread."""
        ...

    def unbind(self) -> None:
        """Drops every binding."""
        ...

    def close(self) -> None:
        """Drops every binding and all memory."""
        ...


def open_arrays(
    graph: OpenGraph, layers: Sequence[KVLayer], full: Extent, extent: Extent | None
) -> KVArrays:
    """The cache that a graph wants: of `extent`, or `full` where untouched memory is free.

    Raises:
        OutOfMemoryError: the device refuses the bytes.
    """
    kind = ConcatenatedKV if graph.is_concatenating else KVBuffers
    room = full if extent is None or graph.backend.touches_lazily else extent
    return kind(graph.backend, layers, graph.kv_dtype, room)


def open_runs(graph: OpenGraph, kv: KVArrays, vocab_size: int, num_rows: int) -> GraphRuns:
    """The runs of a graph over a cache of its kind."""
    if isinstance(kv, ConcatenatedKV):
        return ConcatenatingRuns(graph, kv, vocab_size)
    return InPlaceRuns(graph, kv, vocab_size, max_kept=8 * num_rows)
