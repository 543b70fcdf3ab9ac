"""What the manifest says of an export before it is verified."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version

from twostroke.bundle.manifest import (
    Architecture,
    GraphFact,
    KVLayer,
    Manifest,
    Quantisation,
    graph_file,
)
from twostroke.types import Stroke
from twostroke_export import assets
from twostroke_export.calibrated import Calibrated
from twostroke_export.footprint import Footprint
from twostroke_export.load import Loaded
from twostroke_export.observe import Observed
from twostroke_export.precision import MIXED, PRECISIONS, Lowering
from twostroke_export.recipe import Recipe
from twostroke_export.source import Source

_PACKAGES = ("torch", "transformers", "optimum", "onnx", "onnxscript", "onnx-ir", "twostroke")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")


def describe(
    source: Source,
    loaded: Loaded,
    observed: Observed,
    recipe: Recipe,
    calibrated: Calibrated,
    *,
    context_tokens: int,
    name: str | None,
    weights: Footprint,
) -> Manifest:
    """The manifest without files, verification and self-check.

    `weights` is what the graphs of each stroke read.

    Raises:
        ExportError: a special id lies outside the vocabulary.
    """
    model, layers = loaded.model, observed.layers
    return Manifest(
        name=name or source.full_name,
        architecture=Architecture(
            model_type=model.config.model_type,
            num_layers=len(layers),
            hidden_size=int(model.get_input_embeddings().weight.shape[1]),
            num_heads=layers[0].num_heads,
            vocab_size=loaded.vocab_size,
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        ),
        context_tokens=context_tokens,
        kv_layers=tuple(
            KVLayer(num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim) for layer in layers
        ),
        graphs=tuple(
            GraphFact(
                stroke=stroke,
                dialect=dialect,
                file=graph_file(stroke, dialect),
                quantisation=_quantisation(recipe, calibrated, stroke),
                kv_dtype=recipe.kv_dtype,
                weight_bytes=weights.of(stroke),
                shared_weight_bytes=weights.shared_bytes,
            )
            for dialect in recipe.dialects
            for stroke in Stroke
        ),
        tokens=assets.special_ids(source, loaded),
        generation=assets.generation_defaults(source),
        source=source.facts,
        exporter=_versions(),
    )


def _quantisation(recipe: Recipe, calibrated: Calibrated, stroke: Stroke) -> Quantisation:
    precision, lowering = recipe.precision(stroke), recipe.lowering(stroke)
    bits = PRECISIONS[precision]
    if bits.head is None:
        return Quantisation(precision=precision, activations=recipe.activations)
    return Quantisation(
        precision=precision,
        block_size=lowering.block_size,
        is_symmetric=_is_symmetric(lowering, precision),
        accuracy_level=lowering.accuracy_level,
        activations=recipe.activations,
        group_bits=calibrated.group_bits(recipe, stroke),
    )


def _is_symmetric(lowering: Lowering, precision: str) -> bool | None:
    """None where some matrices have zero points and others none."""
    if precision == MIXED and lowering.is_symmetric is None:
        return None
    bits = PRECISIONS[precision]
    return lowering.blocks(bits.layers or bits.head or 8).is_symmetric


def _versions() -> dict[str, str]:
    found = {}
    for package in (*_PACKAGES, *_RUNTIMES):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
