"""Variants that are loaded: one session each, backends shared by those that ask for the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.engine.kv_extent import Extent
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS
from twostroke.engine.open_graph import OpenGraph, open_graph
from twostroke.engine.runner import Runner
from twostroke.errors import TwostrokeError
from twostroke.life.free_memory import free_memory_bytes
from twostroke.life.memory import kv_capacity
from twostroke.life.needs import engine_needs
from twostroke.tune.settings import Workload
from twostroke.tune.variants import Skipped, Variant
from twostroke.types import Stroke

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class OpenVariant:
    """A variant with its session, and a runner that does its stroke alone."""

    variant: Variant
    graph: OpenGraph
    runner: Runner

    @property
    def is_alone(self) -> bool:
        """Whether it decodes one sequence in a run."""
        return self.runner.max_span_rows == 1


class OpenVariants:
    """Owns backends and sessions; a context manager that closes them."""

    def __init__(self, plugins: Plugins, workload: Workload, chunk_tokens: int | None) -> None:
        """`chunk_tokens` None: of prompts, what the backend that reads them advises."""
        self._plugins = plugins
        self._workload = workload
        self._chunk_tokens = chunk_tokens
        self._backends: dict[str, Backend] = {}
        self._resources = ExitStack()
        self.skipped: list[Skipped] = []

    def open(self, variant: Variant) -> OpenVariant | None:
        """Loads a variant; None, and a reason in `skipped`, where it cannot be had."""
        try:
            opened = self._open(variant)
        except TwostrokeError as error:
            self.skipped.append(Skipped(f"{variant.stroke} on {variant.name}", str(error)))
            return None
        return opened

    def needed_bytes(self, variants: Sequence[Variant], num_rows: int) -> int:
        """What graphs for both strokes take by the memory plan, weights and workspace together."""
        by_stroke = {variant.stroke: variant for variant in variants}
        return engine_needs(
            by_stroke[Stroke.DECODE].bundle,
            {s: v.bundle.graph(s, v.graph.dialect) for s, v in by_stroke.items()},
            {s: self._backend(v) for s, v in by_stroke.items()},
            context_tokens=self._workload.context_tokens,
            chunk_tokens=self.chunk_tokens(self._backend(by_stroke[Stroke.PREFILL])),
            num_rows=num_rows,
        ).num_bytes

    def chunk_tokens(self, backend: Backend) -> int:
        """The longest chunk of a prompt that the engine would give a backend."""
        return self._chunk_tokens or backend.device.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS

    def pair(self, prefill: OpenVariant, decode: OpenVariant) -> Runner:
        """A runner over two sessions that are loaded already, with a cache of one row.

        Raises:
            ContractError: their caches hold different numbers.
        """
        return self._runner(prefill.graph, decode.graph, decode.variant.bundle, num_rows=1)

    def _open(self, variant: Variant) -> OpenVariant:
        backend = self._backend(variant)
        self._refuse_too_large(variant, backend)
        graph = open_graph(variant.bundle, backend, variant.stroke, variant.graph.dialect)
        self._resources.callback(graph.session.close)
        is_decode = variant.stroke is Stroke.DECODE
        num_rows = max(self._workload.streams) if is_decode else 1
        runner = self._runner(graph, graph, variant.bundle, num_rows=num_rows)
        return OpenVariant(variant, graph, runner)

    def _runner(
        self, prefill: OpenGraph, decode: OpenGraph, bundle: Bundle, *, num_rows: int
    ) -> Runner:
        return Runner(
            prefill,
            decode,
            bundle.manifest,
            full=Extent(num_rows, kv_capacity(self._workload.context_tokens)),
        )

    def _refuse_too_large(self, variant: Variant, backend: Backend) -> None:
        """Raises TwostrokeError where what is open already leaves too little host memory."""
        if backend.device.kind != "cpu":
            return
        weight_bytes = variant.graph.weight_bytes or 0
        free_bytes = free_memory_bytes()
        if 2 * weight_bytes > free_bytes:
            raise TwostrokeError(
                f"its weights take {weight_bytes / 1e9:.1f} GB and as much again while they are "
                f"loaded; {free_bytes / 1e9:.1f} GB are free beside the others. Close other "
                f"programs, or tune with --quick"
            )

    def _backend(self, variant: Variant) -> Backend:
        key = json.dumps([variant.backend, variant.device.index, variant.options], default=str)
        if key not in self._backends:
            opened = open_backend(
                self._plugins, variant.backend, variant.device.index, dict(variant.options)
            )
            self._backends[key] = opened.backend
        return self._backends[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()
        for backend in self._backends.values():
            backend.close()
