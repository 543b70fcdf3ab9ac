"""Where `backend: auto` has prompts read: there may be a better place than the processor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twostroke.backends.capabilities import READS_FASTER
from twostroke.backends.choose import AUTO, probe
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import BackendSpec, ProbeResult
from twostroke.config.schema import ModelConfig
from twostroke.types import Stroke


@dataclass(frozen=True, slots=True)
class Reader:
    """The backend that `auto` takes for prefill; `name` None: the one that decodes.

    `note` says why, or what would be gained; None where there is nothing to say.
    """

    name: str | None = None
    note: str | None = None


def choose_reader(
    model: ModelConfig, plugins: Plugins, held_dialects: Collection[str] | None
) -> Reader:
    """Looks for a device that reads prompts faster than the processor that `auto` decodes on.

    `held_dialects` are those of the bundle's prefill graphs; None: it is not exported yet. Whoever
    names a backend, device, dialect or options for prefill, or an int8 cache, has chosen already.
    """
    if _has_chosen(model):
        return Reader()
    found = [(spec, probe(spec)) for spec in _by_priority(plugins)]
    decoder = next((pair for pair in found if pair[1].is_available), None)
    if decoder is None or decoder[1].devices[0].kind != "cpu":
        return Reader()
    for spec, result in found:
        if result.is_available and READS_FASTER in result.devices[0].capabilities:
            return _reader(spec, decoder[0], held_dialects)
    return Reader(note=next((_gain(result) for _, result in found if result.would_bring), None))


def _reader(
    spec: BackendSpec, decoder: BackendSpec, held_dialects: Collection[str] | None
) -> Reader:
    dialect = spec.dialect[Stroke.PREFILL]
    if held_dialects is not None and dialect not in held_dialects:
        note = (
            f"{spec.name} would read prompts faster here, but the bundle has no {dialect} prefill "
            f"graph; export the model with --dialect both to have it"
        )
        return Reader(note=note)
    note = (
        f"`backend: auto` reads prompts on {spec.name}, which is faster at it on this processor, "
        f"and makes answers on {decoder.name}; `twostroke tune` measures whether that is best here"
    )
    return Reader(spec.name, note)


def _has_chosen(model: ModelConfig) -> bool:
    strokes = (model.prefill, model.decode)
    return (
        model.backend != AUTO
        or any(stroke.backend not in (None, AUTO) for stroke in strokes)
        or any(stroke.options or stroke.device is not None for stroke in strokes)
        or bool(model.options)
        or model.device != 0
        or model.prefill.dialect is not None
        or model.kv.dtype == "int8"
        or model.offload.backend is not None
    )


def _by_priority(plugins: Plugins) -> list[BackendSpec]:
    return sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name))


def _gain(result: ProbeResult) -> str:
    return f"{result.would_bring} {result.reason}"
