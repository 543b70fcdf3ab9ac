"""What must be changed in a model's section of the YAML so that a pair runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twostroke.backends.discovery import Plugins
from twostroke.config.schema import ModelConfig, StrokeConfig
from twostroke.model.opening import wanted_backend
from twostroke.tune.pairs import Pair
from twostroke.tune.variants import Variant
from twostroke.types import Stroke


@dataclass(frozen=True, slots=True)
class Edit:
    """One key of a model's section, below `prefill` or `decode`, and its new value."""

    path: tuple[str, ...]
    value: Any


def edits(model: ModelConfig, pair: Pair, plugins: Plugins) -> tuple[Edit, ...]:
    """The fewest that do it: a stroke that stays where it is has none."""
    found = [*_precisions(model, pair)]
    for variant in (pair.prefill.variant, pair.decode.variant):
        if not variant.is_current:
            found += _of_stroke(model, variant, plugins)
    return tuple(found)


def edited(model: ModelConfig, changes: tuple[Edit, ...]) -> ModelConfig:
    """The model with the changes, validated."""
    data = model.model_dump(exclude_unset=True)
    for change in changes:
        section = data
        for part in change.path[:-1]:
            section = section.setdefault(part, {})
        section[change.path[-1]] = change.value
    return ModelConfig.model_validate(data)


def _precisions(model: ModelConfig, pair: Pair) -> Iterator[Edit]:
    """Of the model where both strokes have the same and neither has one of its own."""
    has_own = model.prefill.precision or model.decode.precision
    if not has_own and len(set(pair.precisions)) == 1:
        if pair.precisions[0] != model.precision and not pair.is_of_current_bundle:
            yield Edit(("precision",), pair.precisions[0])
        return
    for stroke, precision in zip(Stroke, pair.precisions, strict=True):
        own = _section(model, stroke).precision
        if precision != (own or model.precision) and not pair.is_of_current_bundle:
            yield Edit((stroke.value, "precision"), precision)


def _section(model: ModelConfig, stroke: Stroke) -> StrokeConfig:
    return model.prefill if stroke is Stroke.PREFILL else model.decode


def _of_stroke(model: ModelConfig, variant: Variant, plugins: Plugins) -> Iterator[Edit]:
    stroke = variant.stroke
    own, wanted, at = _section(model, stroke), wanted_backend(model, stroke), stroke.value
    is_named = wanted.name == variant.backend
    if not is_named:
        yield Edit((at, "backend"), variant.backend)
    if not _is_meant(variant, wanted.device if is_named else model.device):
        yield Edit((at, "device"), variant.device.index)
    asked = own.dialect or plugins.backends[variant.backend].dialect[stroke]
    if variant.graph.dialect != asked:
        yield Edit((at, "dialect"), variant.graph.dialect)
    inherited = model.options if variant.backend == model.backend else {}
    given = {**inherited, **own.options}
    if not given.keys() <= variant.options.keys():  # they were another backend's
        yield Edit((at, "options"), dict(variant.options))
        return
    for name, value in variant.options.items():
        if name not in given or given[name] != value:
            yield Edit((at, "options", name), value)


def _is_meant(variant: Variant, wanted: int | str) -> bool:
    if isinstance(wanted, int):
        return variant.device.index == wanted
    return wanted.casefold() in variant.device.name.casefold()
