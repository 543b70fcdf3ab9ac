"""Opens the backends a model asks for and builds its engine on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.backends.choose import Opened, open_with_fallback
from twostroke.backends.discovery import Plugins
from twostroke.bundle import Bundle
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.engine.build import build_engine
from twostroke.engine.engine import Engine
from twostroke.engine.limits import EngineLimits
from twostroke.types import Stroke


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """A started engine and the backends below it; both strokes may share one."""

    engine: Engine
    opened: Mapping[Stroke, Opened]

    def close(self, *, drain_timeout_s: float = 0.0) -> None:
        """Stops the engine, then frees the devices. Doing so twice is harmless."""
        self.engine.stop(drain_timeout_s=drain_timeout_s)
        backends = {id(opened.backend): opened.backend for opened in self.opened.values()}
        for backend in backends.values():
            backend.close()


@dataclass(frozen=True)
class _Wanted:
    """What a stroke asks for; equal ones share a backend."""

    name: str
    device: int
    options: dict[str, Any]


def open_engine(
    bundle: Bundle, model: ModelConfig, scheduler: SchedulerConfig, plugins: Plugins
) -> OpenEngine:
    """A started engine for `bundle`, on the backends that `model` names.

    Only what `model.fallback` names may take over from them.

    Raises:
        ConfigError: settings that do not fit the bundle.
        BackendError: a backend is unknown, absent, or runs nodes elsewhere.
        BundleError, OutOfMemoryError, InstallError: from loading.
    """
    limits = EngineLimits(
        max_rows=scheduler.max_rows,
        max_queue=scheduler.max_queue,
        prefill_chunk_tokens=scheduler.prefill_chunk_tokens,
        context_tokens=model.context_tokens,
        kv_budget_bytes=None if model.kv.budget == "auto" else model.kv.budget,
    )

    def build(prefill: Opened, decode: Opened) -> OpenEngine:
        engine = build_engine(bundle, prefill.backend, decode.backend, limits)
        engine.start()
        return OpenEngine(engine, {Stroke.PREFILL: prefill, Stroke.DECODE: decode})

    def with_backend(wanted: _Wanted, use: Any) -> OpenEngine:
        opened: OpenEngine = open_with_fallback(
            plugins, use, wanted.name, wanted.device, wanted.options, model.fallback
        )
        return opened

    wanted_prefill, wanted_decode = _wanted(model, Stroke.PREFILL), _wanted(model, Stroke.DECODE)
    if wanted_prefill == wanted_decode:
        return with_backend(wanted_prefill, lambda both: build(both, both))
    return with_backend(
        wanted_prefill,
        lambda prefill: with_backend(wanted_decode, lambda decode: build(prefill, decode)),
    )


def _wanted(model: ModelConfig, stroke: Stroke) -> _Wanted:
    own = model.prefill if stroke is Stroke.PREFILL else model.decode
    name = own.backend or model.backend
    # The model's options are those of the model's backend; another one would refuse them.
    shared = model.options if name == model.backend else {}
    device = model.device if own.device is None else own.device
    return _Wanted(name, device, {**shared, **own.options})
