"""Where and how each stroke could run: backends that are here, graphs that the bundles hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.backends.capabilities import CHOSEN_BY_OPTIONS
from twostroke.backends.choose import AUTO, probe
from twostroke.backends.devices import find_device
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import BackendSpec, Device, ProbeResult
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import GraphFact
from twostroke.config.schema import ModelConfig
from twostroke.model.dialects import asked_dialect, prefill_dialects
from twostroke.model.opening import wanted_backend
from twostroke.model.reader import choose_reader
from twostroke.types import Stroke

_FUSED = "fused"


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to run a stroke: a graph of a bundle on a device of a backend, with its options.

    `threads` is what the options say of the threads that an operator uses; None: they say nothing,
    or the backend has no such option. `is_current`: the YAML asks for it as it stands;
    `is_of_own_bundle`: its graph is one of the bundle that the YAML leads to.
    """

    stroke: Stroke
    backend: str
    device: Device
    bundle: Bundle
    graph: GraphFact
    options: Mapping[str, Any]
    threads: int | None = None
    is_current: bool = False
    is_of_own_bundle: bool = True

    @property
    def precision(self) -> str:
        """That of the graph's weights."""
        return self.graph.quantisation.precision

    @property
    def name(self) -> str:
        """E.g. `cpu int8 fused, 2 threads`."""
        where = f"{self.backend}:{self.device.index}" if self.device.index else self.backend
        threads = {None: "", 1: ", 1 thread"}.get(self.threads, f", {self.threads} threads")
        return f"{where} {self.precision} {self.graph.dialect}{threads}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """What is not measured, and why."""

    what: str
    reason: str


class Listing:
    """Lists the variants of a model over bundles of it; what it leaves out lies in `skipped`."""

    def __init__(self, model: ModelConfig, plugins: Plugins, *, is_quick: bool) -> None:
        """Asks every backend what is there."""
        self._model = model
        self._plugins = plugins
        self._is_quick = is_quick
        self.skipped: list[Skipped] = []
        self._found: list[tuple[BackendSpec, ProbeResult]] = []
        specs = sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name))
        for spec in specs:
            found = probe(spec)
            if found.is_available:
                self._found.append((spec, found))
            else:
                self.skipped.append(Skipped(spec.name, found.reason or "its probe gave no reason"))
        for record in plugins.records:
            if record.status != "loaded":
                self.skipped.append(Skipped(str(record), f"{record.status}: {record.error}"))

    def dialects(self) -> tuple[str, ...]:
        """Every dialect that a backend here wants, or the YAML asks for; `fused` first."""
        wanted = {spec.dialect[stroke] for spec, _ in self._found for stroke in Stroke}
        asked = {asked_dialect(self._model, stroke) for stroke in Stroke} - {None}
        return tuple(sorted(wanted | {dialect for dialect in asked if dialect}))

    def variants(self, stroke: Stroke, bundles: Sequence[Bundle]) -> list[Variant]:
        """Those of a stroke, what the YAML asks for (over the first bundle) first."""
        current = self._current(stroke, bundles[0])
        listed = [] if current is None else [current]
        for spec, found in self._found:
            for device in found.devices[: 1 if self._is_quick else None]:
                for variant in self._of_device(stroke, spec, device, bundles):
                    if not any(_is_same(variant, other) for other in listed):
                        listed.append(variant)
        return listed

    def _current(self, stroke: Stroke, bundle: Bundle) -> Variant | None:
        """What the YAML asks for; None where it cannot be had here (which is then a reason)."""
        wanted = wanted_backend(self._model, stroke)
        name = wanted.name
        if stroke is Stroke.PREFILL and name == AUTO:
            held = prefill_dialects(bundle)
            name = choose_reader(self._model, self._plugins, held).name or AUTO
        for spec, found in self._found:
            if name not in (spec.name, AUTO):
                continue
            dialect = asked_dialect(self._model, stroke) or spec.dialect[stroke]
            graphs: dict[str, GraphFact] = {g.dialect: g for g in _graphs(bundle, stroke)}
            graph = graphs.get(dialect) or graphs.get("standard")  # as `choose_dialect` takes it
            if graph is None:
                continue
            device = find_device(spec.name, found, wanted.device)
            threads = _threads_option(spec, wanted.options)
            return Variant(
                stroke,
                spec.name,
                device,
                bundle,
                graph,
                wanted.options,
                threads,
                is_current=True,
            )
        if wanted.name != AUTO:
            reason = "the YAML asks for it, and it cannot be used here with this bundle"
            self.skipped.append(Skipped(f"{stroke} on {wanted.name}", reason))
        return None

    def _of_device(
        self, stroke: Stroke, spec: BackendSpec, device: Device, bundles: Sequence[Bundle]
    ) -> Iterator[Variant]:
        own = self._own_options(stroke, spec)
        if CHOSEN_BY_OPTIONS in device.capabilities and not own:
            self._skip(spec.name, "its options say which device it is; name it in the YAML first")
            return
        for bundle in bundles:
            for graph in _graphs(bundle, stroke):
                reason = self._obstacle(spec, graph)
                if reason is not None:
                    self._skip(f"{stroke} on {spec.name} in the {graph.dialect} dialect", reason)
                    continue
                for threads in self._thread_counts(spec, device, own):
                    options = dict(own)
                    if threads is not None and spec.threads_option is not None:
                        options[spec.threads_option] = threads
                    yield Variant(
                        stroke,
                        spec.name,
                        device,
                        bundle,
                        graph,
                        options,
                        threads,
                        is_of_own_bundle=bundle is bundles[0],
                    )

    def _skip(self, what: str, reason: str) -> None:
        if all(skipped.what != what for skipped in self.skipped):
            self.skipped.append(Skipped(what, reason))

    def _obstacle(self, spec: BackendSpec, graph: GraphFact) -> str | None:
        wanted = spec.dialect[graph.stroke]
        if graph.dialect == wanted:
            return None
        if graph.dialect == _FUSED:
            return f"{spec.name} wants {wanted} graphs: it would leave fused operators to others"
        return (
            "quick: plain operators are never faster where fused ones run"
            if (self._is_quick)
            else None
        )

    def _own_options(self, stroke: Stroke, spec: BackendSpec) -> dict[str, Any]:
        """The options that the YAML gives this backend for a stroke."""
        wanted = wanted_backend(self._model, stroke)
        is_meant = wanted.name == spec.name or (wanted.name == AUTO and spec is self._found[0][0])
        return dict(wanted.options) if is_meant else {}

    def _thread_counts(
        self, spec: BackendSpec, device: Device, own: Mapping[str, Any]
    ) -> list[int | None]:
        """None is the backend's own choice: all processors, or what the YAML says already."""
        counts: list[int | None] = [_threads_option(spec, own)]
        if spec.threads_option is None or device.kind != "cpu" or self._is_quick:
            return counts
        usable = _usable_threads(device)
        if counts[0] is not None and counts[0] != usable:
            counts.append(usable)
        return [*counts, *(n for n in _fewer(usable) if n not in counts)]


def _graphs(bundle: Bundle, stroke: Stroke) -> list[GraphFact]:
    return [graph for graph in bundle.manifest.graphs if graph.stroke is stroke]


def _threads_option(spec: BackendSpec, options: Mapping[str, Any]) -> int | None:
    return options.get(spec.threads_option) if spec.threads_option is not None else None


def _usable_threads(device: Device) -> int:
    told = device.details.get("threads", "")
    return int(told) if told.isdecimal() else os.cpu_count() or 1


def _fewer(usable: int) -> list[int]:
    """Half as many, and of many a quarter: memory bandwidth is often spent by fewer threads."""
    return [n for n in (usable // 2, usable // 4 if usable >= 8 else 0) if n >= 1]


def _is_same(one: Variant, other: Variant) -> bool:
    return (
        one.stroke is other.stroke
        and (one.backend, one.device.index) == (other.backend, other.device.index)
        and one.graph is other.graph
        and one.bundle.root == other.bundle.root
        and dict(one.options) == dict(other.options)
    )
