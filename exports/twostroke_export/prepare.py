"""Loads a source once, measures what it answers, and traces it for whoever writes a bundle."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from twostroke.bundle.manifest import Dialect
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.context import context_limit, effective_context
from twostroke_export.load import Loaded, load
from twostroke_export.long_rope import original_length, use_long_factors
from twostroke_export.lora import merge
from twostroke_export.observe import Observed, observe
from twostroke_export.own_attention import observe_own_attention
from twostroke_export.passes.fuse import fuse
from twostroke_export.passes.simplify import simplify
from twostroke_export.reference import Reference, measure_reference
from twostroke_export.source import Source, resolve
from twostroke_export.trace import trace

Report = Callable[[str, float], None]  # a stage and its fraction, 0 to 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that was loaded and measured; every bundle is made from its traces.

    graphs: traced on first use and kept; cloned by whoever changes them.
    """

    source: Source
    loaded: Loaded
    observed: Observed
    reference: Reference
    context_tokens: int
    graphs: dict[Stroke, ir.Model] = field(default_factory=dict)

    def graph(self, stroke: Stroke) -> ir.Model:
        """The simplified graph of a stroke, its weights still those of the torch model."""
        if stroke not in self.graphs:
            model = trace(self.loaded.model, self.observed, stroke, self.context_tokens)
            simplify(model)
            fuse(model.graph)
            self.graphs[stroke] = model
        return self.graphs[stroke]

    def cast(self, activations: str) -> None:
        """Casts the weights to `activations` (numpy's name); what was traced before is dropped.

        Mutates the model; does nothing where it has that dtype already.

        Raises:
            ExportError: the weights have been rounded to other floats before.
        """
        wanted = getattr(torch, activations)
        found = next(self.loaded.model.parameters()).dtype
        if found == wanted:
            return
        if found != torch.float32:
            raise ExportError(
                "Bundles in fp16 and in bf16 do not come from one load, because the second would "
                "be rounded twice; export them one after the other."
            )
        cast_parameters(self.loaded.model, wanted)
        self.graphs.clear()


def prepare(
    source: str | Source,
    context_tokens: int | None,
    report: Report,
    dialects: Collection[Dialect] = frozenset({"fused"}),
) -> Prepared:
    """Finds, checks and loads a source, and measures its answers.

    `dialects` are those that graphs will be made in: the fused one asks more of a model.

    Raises:
        ExportError: nothing is there, or it is no model that can be exported.
    """
    report("load", 0.0)
    found = resolve(source)
    effective_context(found.name, found.limit_tokens, context_tokens)  # refused before the load
    loaded = load(found, lambda fraction: report("load", 0.5 * fraction))
    if found.adapter is not None:
        merge(loaded, found.adapter, found.name)
    limit = _settle_context(found.name, loaded.model, context_tokens)
    observed = _observe(loaded.model, dialects)
    report("measure the source", 0.6)
    reference = measure_reference(loaded, limit)
    return Prepared(found, loaded, observed, reference, limit)


def _settle_context(name: str, model: Any, asked_tokens: int | None) -> int:
    """The context of the export, in tokens; a long one makes the model take its long factors."""
    original = original_length(model.config)
    limit = effective_context(name, context_limit(model.config), asked_tokens, original)
    if original is not None and limit > original:
        use_long_factors(model, original)
    return limit


def _observe(model: Any, dialects: Collection[Dialect]) -> Observed:
    try:
        return observe(model)
    except ExportError:
        if "fused" in dialects:
            raise
        return observe_own_attention(model)


def cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Casts the weights and leaves buffers (rotary frequencies) alone. Mutates."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
