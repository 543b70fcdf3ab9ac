"""Splits a model between two open backends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from twostroke.backends.capabilities import PacksWeights
from twostroke.backends.choose import Opened
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Backend, Device
from twostroke.backends.split import SplitBackend, graph_parts
from twostroke.bundle import Bundle
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS
from twostroke.errors import BundleError, ConfigError, InstallError
from twostroke.life.bundle_weights import table_bytes, weigh_graph
from twostroke.life.limits import known_limits
from twostroke.life.memory import kv_bytes_per_token, kv_capacity
from twostroke.life.needs import engine_needs
from twostroke.life.offload import Half, Load, cost_sentence, fewest_front_layers
from twostroke.model.dialects import asked_dialect, choose_dialect
from twostroke.source import open_resolved
from twostroke.types import Stroke

log = logging.getLogger(__name__)


def check_offload(model: ModelConfig) -> None:
    """Refuses settings that contradict `offload`.

    Raises:
        ConfigError: a stroke of a split model names a backend of its own.
    """
    own = [s for s in Stroke if (model.prefill if s is Stroke.PREFILL else model.decode).backend]
    if own:
        raise ConfigError(
            [
                f"{own[0]}.backend: a model with `offload` runs both strokes on `backend` and "
                "`offload.backend`; leave one of them out"
            ]
        )


def split_between(
    front: Opened,
    back: Opened,
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    plugins: Plugins,
) -> tuple[Opened, Bundle]:
    """The first layers on `front`, the others on `back`, as one backend; and the bundle, cut.

    `back` alone where `offload.layers` is auto and the whole model fits it. Adds the halves of the
    graphs to the bundle where they are not there yet.

    Raises:
        ConfigError, OutOfMemoryError: no number of layers fits, or the device's memory is unknown.
        BundleError, ExportError, InstallError: the bundle cannot be cut.
    """
    wanted = {
        stroke: "standard"
        if "standard" in (front.dialect[stroke], back.dialect[stroke])
        else "fused"
        for stroke in Stroke
    }
    dialects = {
        stroke: choose_dialect(
            bundle, stroke, asked_dialect(model, stroke), back.backend.name, wanted
        )
        for stroke in Stroke
    }
    num_front = _num_front_layers(back.backend, bundle, model, scheduler, dialects)
    if num_front == 0:
        log.info("%s: all layers fit %s, so none is offloaded", model.name, back.backend.name)
        return replace(back, dialect=dialects), bundle
    bundle = _with_halves(bundle, num_front, plugins)
    halves = {
        cut.file: (cut.front, cut.back)
        for cut in bundle.manifest.cuts
        if cut.num_front_layers == num_front
    }
    pair = SplitBackend(front.backend, back.backend, num_front, halves)
    log.info("%s: %s", model.name, _cost(pair, bundle, dialects[Stroke.DECODE]))
    reasons = [each.reason_for_fallback for each in (front, back) if each.reason_for_fallback]
    opened = Opened(
        pair, f"{front.requested}+{back.requested}", " ".join(reasons) or None, dialects
    )
    return opened, bundle


def _num_front_layers(
    back: Backend,
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    dialects: Mapping[Stroke, str],
) -> int:
    num_layers = len(bundle.manifest.kv_layers)
    asked = model.offload.layers
    if asked != "auto":
        if asked >= num_layers:
            raise ConfigError(
                [
                    f"offload.layers is {asked}, and {bundle.manifest.name} has {num_layers} "
                    f"layers: at most {num_layers - 1}, or name one backend for all of them"
                ]
            )
        return asked
    if back.device.kind == "cpu":
        raise ConfigError(
            [
                "offload.layers: auto is for a `backend` with memory of its own, and "
                f"{back.name!r} runs in the host's: say how many layers"
            ]
        )
    load = _load(back, bundle, model, scheduler, dialects)
    return fewest_front_layers(back.name, load, _free_bytes(back.device))


def _load(
    back: Backend,
    bundle: Bundle,
    model: ModelConfig,
    scheduler: SchedulerConfig,
    dialects: Mapping[Stroke, str],
) -> Load:
    context_tokens = model.context_tokens or bundle.manifest.context_tokens
    graphs = {stroke: bundle.graph(stroke, dialects[stroke]) for stroke in Stroke}
    chunk_tokens = scheduler.prefill_chunk_tokens
    if chunk_tokens == "auto":
        chunk_tokens = back.device.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS
    needs = engine_needs(
        bundle,
        graphs,
        dict.fromkeys(Stroke, back),
        context_tokens=context_tokens,
        chunk_tokens=chunk_tokens,
        num_rows=scheduler.max_rows,
    )
    kv_bytes = model.kv.budget
    if kv_bytes == "auto":  # the least that serves the longest prompt
        per_token = kv_bytes_per_token(bundle.manifest.kv_layers, bundle.manifest.kv_dtype)
        kv_bytes = per_token * kv_capacity(context_tokens)
    return Load(
        num_layers=len(bundle.manifest.kv_layers),
        weights_bytes=needs.weights_bytes,
        table_bytes=min(
            needs.weights_bytes,
            table_bytes(graphs.values(), bundle.manifest.architecture.vocab_size),
        ),
        kv_bytes=kv_bytes,
        workspace_bytes=needs.workspace_bytes,
    )


def _free_bytes(device: Device) -> int | None:
    told = device.details.get("free_bytes", "")
    return int(told) if told.isdigit() else device.memory_bytes


def _with_halves(bundle: Bundle, num_front_layers: int, plugins: Plugins) -> Bundle:
    files = [graph.file for graph in bundle.manifest.graphs]
    if all(bundle.manifest.cut(file, num_front_layers) for file in files):
        return bundle
    if bundle.origin is not None:
        raise BundleError(
            f"{bundle.root} is {bundle.origin}, whose graphs are not cut between layers. Export "
            "its source with `twostroke export`."
        )
    for exporter in plugins.exporters.values():
        if exporter.split is not None:
            exporter.split(bundle.root, num_front_layers)
            return open_resolved(bundle.root)
    raise InstallError(
        f"{bundle.root} must be cut behind layer {num_front_layers - 1}, and nothing here can: "
        'pip install "twostroke[export]", or run `twostroke split` where it is installed.'
    )


def _cost(pair: SplitBackend, bundle: Bundle, dialect: str) -> str:
    vocab_size = bundle.manifest.architecture.vocab_size
    edges = (0, pair.num_front_layers, len(bundle.manifest.kv_layers))
    halves = []
    parts = graph_parts(bundle.graph(Stroke.DECODE, dialect), pair)
    for number, (path, backend) in enumerate(parts):
        weights = weigh_graph(path, vocab_size=vocab_size, packs=isinstance(backend, PacksWeights))
        halves.append(
            Half(
                backend.name,
                edges[number],
                edges[number + 1] - 1,
                round(weights.read_bytes(1)),
                known_limits(backend).read_bytes_per_s,
            )
        )
    return cost_sentence(*halves)
