"""The pair of backends as one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from twostroke.backends.capabilities import LayeredBackend
from twostroke.backends.protocol import Backend, Buffer, Device
from twostroke.backends.split.buffers import TwoBuffers
from twostroke.backends.split.session import SplitSession
from twostroke.errors import BundleError
from twostroke.types import Stroke


def layer_backend(backend: Backend, layer: int) -> Backend:
    """Where the KV cache of a layer is allocated."""
    return backend.of_layer(layer) if isinstance(backend, LayeredBackend) else backend


def graph_parts(graph: Path, backend: Backend) -> list[tuple[Path, Backend]]:
    """The files that a backend loads for a graph, and what loads each of them."""
    if isinstance(backend, SplitBackend):
        return list(zip(backend.halves(graph), (backend.front, backend.back), strict=True))
    return [(graph, backend)]


class SplitBackend:
    """The first `num_front_layers` layers on `front`, the others and the head on `back`.

    `halves` names the two halves of each graph by the file name of the whole one.
    """

    def __init__(
        self,
        front: Backend,
        back: Backend,
        num_front_layers: int,
        halves: Mapping[str, tuple[str, str]],
    ) -> None:
        self.front, self.back = front, back
        self.num_front_layers = num_front_layers
        self._halves = halves

    @property
    def name(self) -> str:
        """Both names, in the order in which a token passes them."""
        return f"{self.front.name}+{self.back.name}"

    @property
    def device(self) -> Device:
        """The back's device, which answers; by both names."""
        front, back = self.front.device, self.back.device
        dtypes = front.dtypes & back.dtypes if front.dtypes and back.dtypes else frozenset[str]()
        return Device(
            index=back.index,
            name=f"{front.name} + {back.name}",
            kind=back.kind,
            memory_bytes=back.memory_bytes,
            dtypes=dtypes,
            prefill_chunk_tokens=front.prefill_chunk_tokens or back.prefill_chunk_tokens,
        )

    @property
    def has_row_views(self) -> bool:
        """Whether both have."""
        return self.front.has_row_views and self.back.has_row_views

    @property
    def touches_lazily(self) -> bool:
        """Whether both do."""
        return self.front.touches_lazily and self.back.touches_lazily

    def of_layer(self, layer: int) -> Backend:
        """The backend that has a layer."""
        return self.front if layer < self.num_front_layers else self.back

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """A buffer for small inputs and logits: one on each side, written together.

        Raises:
            OutOfMemoryError: from either backend.
        """
        back = self.back.allocate(shape, dtype, on_host=on_host)
        return TwoBuffers(lambda: self.front.allocate(shape, dtype, on_host=on_host), back)

    def halves(self, graph: Path) -> tuple[Path, Path]:
        """The files of a graph's first layers and of the others.

        Raises:
            BundleError: the graph was not cut there.
        """
        if graph.name not in self._halves:
            raise BundleError(
                f"{graph} is not cut behind layer {self.num_front_layers}: run "
                f"`twostroke split {graph.parent} --layers {self.num_front_layers}`."
            )
        front, back = self._halves[graph.name]
        return graph.with_name(front), graph.with_name(back)

    def open_session(self, graph: Path, stroke: Stroke) -> SplitSession:
        """Loads the halves of `graph`, each on its device.

        Raises:
            PlacementError, BundleError: as either backend says.
        """
        front_graph, back_graph = self.halves(graph)
        with contextlib.ExitStack() as opened:
            front = self.front.open_session(front_graph, stroke)
            opened.callback(front.close)
            back = self.back.open_session(back_graph, stroke)
            opened.callback(back.close)
            session = SplitSession(self, front, back)
            opened.pop_all()
        return session

    def close(self) -> None:
        """Frees both devices. Sessions and buffers must be closed before."""
        self.back.close()
        self.front.close()
