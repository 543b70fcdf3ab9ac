"""What a model of the YAML will take, estimated before it is loaded."""

from __future__ import annotations

from pathlib import Path

from twostroke.backends.choose import meant_spec, probe
from twostroke.backends.devices import find_device
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Device
from twostroke.bundle import is_bundle, is_foreign
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS
from twostroke.life.memory import kv_capacity
from twostroke.life.plan_source import find_subject
from twostroke.life.room import Demand, place_of
from twostroke.life.subject import Subject, check_context
from twostroke.life.workspace import plan_workspace
from twostroke.model.opening import wanted_backend
from twostroke.source import locate
from twostroke.types import Stroke


def demand_of(model: ModelConfig, scheduler: SchedulerConfig, plugins: Plugins) -> Demand | None:
    """What `model` takes on the device that decodes; None where that cannot be said beforehand.

    That is so where its backend is not there, its device does not tell its memory, or two devices
    share its layers.

    Reads graphs' declarations or a config.json; of a hub id that may be downloaded. On the host
    weights are packed and shared as the CPU backend does it by default.

    Raises:
        TwostrokeError: the source is no model that can be planned.
    """
    device = _device(model, plugins)
    if device is None or model.offload.backend is not None:
        return None
    is_host = device.kind == "cpu"
    if not is_host and device.memory_bytes is None:
        return None
    subject = _subject(model, is_host=is_host)
    context_tokens = check_context(subject, model.context_tokens)
    chunk_tokens = scheduler.prefill_chunk_tokens
    workspace = plan_workspace(
        hidden_size=subject.hidden_size,
        widest=subject.widest,
        num_heads=subject.num_heads,
        vocab_size=subject.vocab_size,
        chunk_tokens=DEFAULT_CHUNK_TOKENS if chunk_tokens == "auto" else chunk_tokens,
        context_tokens=context_tokens,
        num_rows=scheduler.max_rows,
        keeps_scores=is_host,
    )
    name = wanted_backend(model, Stroke.DECODE).name
    return Demand(
        place_of(name, device),
        subject.loaded_bytes + workspace.num_bytes,
        subject.kv_bytes_per_token * kv_capacity(context_tokens),
        scheduler.max_rows,
        None if model.kv.budget == "auto" else model.kv.budget,
        None if is_host else device.memory_bytes,
    )


def _device(model: ModelConfig, plugins: Plugins) -> Device | None:
    wanted = wanted_backend(model, Stroke.DECODE)
    spec = meant_spec(plugins, wanted.name)
    found = None if spec is None else probe(spec)
    if found is None or not found.is_available:
        return None
    return find_device(wanted.name, found, wanted.device)


def _subject(model: ModelConfig, *, is_host: bool) -> Subject:
    located = locate(model.source)
    has_graphs = isinstance(located, Path) and (is_bundle(located) or is_foreign(located))
    exported = "int8" if model.precision == "mixed" else model.precision  # its bits are not known
    kv_dtype = None if model.kv.dtype == "auto" else model.kv.dtype
    return find_subject(
        model.source,
        precision=None if has_graphs else exported,
        kv_dtype=None if has_graphs else kv_dtype,
        packs=is_host,
        shares=is_host,
    )
