"""Opens the backends a model asks for and builds its engine on them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twostroke.backends.choose import Opened, open_with_fallback
from twostroke.backends.discovery import Plugins
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import GraphFact
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.engine.build import build_engine
from twostroke.engine.engine import Engine
from twostroke.engine.engine_plan import chosen_graphs
from twostroke.engine.limits import EngineLimits, RecoveryLimits
from twostroke.errors import (
    BackendUnavailableError,
    OutOfMemoryError,
    PlacementError,
    PluginError,
)
from twostroke.life.limits import measure_once
from twostroke.life.metrics import EngineMetrics
from twostroke.life.roofline import has_costs
from twostroke.model.dialects import asked_dialect, backend_name, choose_dialect, prefill_dialects
from twostroke.model.offloading import check_offload, split_between
from twostroke.model.open_backends import OpenBackends
from twostroke.model.reader import choose_reader
from twostroke.types import Stroke

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """A started engine, and of each stroke its graph and its backend, which both may share."""

    engine: Engine
    metrics: EngineMetrics
    backends: OpenBackends
    graphs: Mapping[Stroke, GraphFact]
    note: str | None = None  # why `backend: auto` placed the strokes as it did

    @property
    def opened(self) -> Mapping[Stroke, Opened]:
        """The backends right now, and how they came to be these."""
        return self.backends.by_stroke

    def close(self, *, drain_timeout_s: float = 0.0) -> None:
        """Stops the engine, then frees the devices. Doing so twice is harmless.

        A device on which a run hangs stays open: freeing it would pull it from under the run.
        """
        self.engine.stop(drain_timeout_s=drain_timeout_s)
        if not self.engine.has_hung_threads:
            self.backends.close()


@dataclass(frozen=True)
class WantedBackend:
    """What a stroke asks for; equal ones share a backend."""

    name: str
    device: int | str
    options: dict[str, Any]


def _folder(path: str | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def open_engine(
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    plugins: Plugins,
    *,
    measure_device: bool = False,
) -> OpenEngine:
    """A started engine for `bundle`, on the backends that `model` names.

    Only what `model.fallback` names may take over from them. `measure_device`: what their devices
    can do is measured first, where it is not known yet.

    Raises:
        ConfigError: settings that do not fit the bundle.
        BackendError: a backend is unknown, absent, or runs nodes elsewhere.
        BundleError: also a dialect that the bundle lacks.
        OutOfMemoryError, InstallError: from loading.
    """

    def build(prefill: Opened, decode: Opened) -> OpenEngine:
        backends = OpenBackends(
            plugins,
            {Stroke.PREFILL: prefill, Stroke.DECODE: decode},
            {stroke: wanted_backend(model, stroke).options for stroke in Stroke},
        )
        return _build(bundle, model, scheduler, backends, measure_device=measure_device)

    def with_backend(wanted: WantedBackend, use: Any) -> OpenEngine:
        opened: OpenEngine = open_with_fallback(
            plugins, use, wanted.name, wanted.device, wanted.options, model.fallback
        )
        return opened

    if model.offload.backend is not None:
        check_offload(model)
        return _open_split(bundle, model, scheduler, plugins, measure_device=measure_device)
    wanted_prefill = wanted_backend(model, Stroke.PREFILL)
    wanted_decode = wanted_backend(model, Stroke.DECODE)

    def apart(prefill_wanted: WantedBackend) -> OpenEngine:
        return with_backend(
            prefill_wanted,
            lambda prefill: with_backend(wanted_decode, lambda decode: build(prefill, decode)),
        )

    if wanted_prefill != wanted_decode:
        return apart(wanted_prefill)
    reader = choose_reader(model, plugins, prefill_dialects(bundle))
    note = reader.note
    if reader.name is not None:
        try:
            return replace(apart(WantedBackend(reader.name, 0, {})), note=note)
        except (BackendUnavailableError, PlacementError, PluginError, OutOfMemoryError) as error:
            note = f"{error} So prompts are read where answers are made, and not on {reader.name}."
            log.warning("%s: %s", model.name, note)
    return replace(with_backend(wanted_prefill, lambda both: build(both, both)), note=note)


def _open_split(
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    plugins: Plugins,
    *,
    measure_device: bool,
) -> OpenEngine:
    """As `open_engine`, with the first layers on the backend that `model.offload` names."""
    offload = model.offload
    assert offload.backend is not None

    def build(front: Opened, back: Opened) -> OpenEngine:
        if measure_device:
            for backend in (front.backend, back.backend):
                measure_once(backend)
        both, cut = split_between(front, back, bundle, model, scheduler, plugins)
        backends = OpenBackends(plugins, dict.fromkeys(Stroke, both))
        opened = _build(cut, model, scheduler, backends, measure_device=False)
        if both.backend is back.backend:
            front.backend.close()
        return opened

    opened: OpenEngine = open_with_fallback(
        plugins,
        lambda front: open_with_fallback(
            plugins,
            lambda back: build(front, back),
            model.backend,
            model.device,
            model.options,
            model.fallback,
        ),
        offload.backend,
        offload.device,
        offload.options,
    )
    return opened


def _build(
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    backends: OpenBackends,
    *,
    measure_device: bool,
) -> OpenEngine:
    opened = backends.by_stroke
    dialects = {
        stroke: choose_dialect(
            bundle, stroke, asked_dialect(model, stroke), choice.backend.name, choice.dialect
        )
        for stroke, choice in opened.items()
    }
    if measure_device and has_costs(bundle.graph(Stroke.DECODE, dialects[Stroke.DECODE])):
        for backend in {id(o.backend): o.backend for o in opened.values()}.values():
            measure_once(backend)
    engine = build_engine(
        bundle,
        *backends.pair,
        _limits(model, scheduler),
        dialects=dialects,
        reopen_backends=backends.reopen if backends.can_reopen else None,
    )
    metrics = EngineMetrics()
    engine.observers.add(metrics)
    engine.start()
    return OpenEngine(engine, metrics, backends, chosen_graphs(bundle, dialects))


def _limits(model: ModelConfig, scheduler: SchedulerConfig) -> EngineLimits:
    chunk_tokens = scheduler.prefill_chunk_tokens
    return EngineLimits(
        max_rows=scheduler.max_rows,
        max_queue=scheduler.max_queue,
        prefill_chunk_tokens=None if chunk_tokens == "auto" else chunk_tokens,
        max_stall_ms=scheduler.max_stall_ms,
        request_timeout_s=scheduler.request_timeout_s,
        context_tokens=model.context_tokens,
        kv_budget_bytes=None if model.kv.budget == "auto" else model.kv.budget,
        reuse_prefixes=model.kv.prefixes.reuse,
        share_prefixes=model.kv.prefixes.share_between_keys,
        prefix_store_bytes=model.kv.prefixes.store,
        prefix_store_path=_folder(model.kv.prefixes.store_path),
        speculation=model.speculation.mode,
        max_draft_tokens=model.speculation.max_draft_tokens,
        recovery=RecoveryLimits(model.recovery.watchdog_s, model.recovery.max_tries),
    )


def wanted_backend(model: ModelConfig, stroke: Stroke) -> WantedBackend:
    """The backend that the YAML names for a stroke, and what it says of its device and options."""
    own = model.prefill if stroke is Stroke.PREFILL else model.decode
    name = backend_name(model, stroke)
    # The model's options are those of the model's backend; another one would refuse them.
    shared = model.options if name == model.backend else {}
    device = model.device if own.device is None else own.device
    return WantedBackend(name, device, {**shared, **own.options})
