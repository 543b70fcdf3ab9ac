"""What a model's section of the YAML says of precisions, asked of an export and of a bundle."""

from __future__ import annotations

import logging
from typing import Any

from twostroke.bundle import Bundle
from twostroke.config.schema import ModelConfig
from twostroke.errors import ConfigError
from twostroke.types import Stroke

log = logging.getLogger(__name__)


def export_options(model: ModelConfig) -> dict[str, Any]:
    """The fields of `ExportOptions` that differ from their defaults, for an export on first use."""
    wanted = {
        "prefill_precision": model.prefill.precision,
        "decode_precision": model.decode.precision,
        "kv_dtype": "int8" if model.kv.dtype == "int8" else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def check_precisions(bundle: Bundle, model: ModelConfig) -> None:
    """Compares what the YAML asks for with what a bundle holds.

    A stroke's own precision and the cache's dtype must be there; the model's `precision` is what
    an export would make, and only told of.

    Raises:
        ConfigError: the bundle lacks what is asked; says what it holds.
    """
    faults = [*_lacking_precisions(bundle, model), *_other_cache(bundle, model)]
    if faults:
        raise ConfigError(faults)
    own = bundle.manifest.precision
    if "precision" in model.model_fields_set and model.both_precisions != own:
        log.warning(
            "%s: precision is set to %s, but the bundle %s is %s and stays so; leave precision "
            "out, or name the source model to have %s exported",
            model.name,
            model.precision,
            bundle.root,
            own,
            model.precision,
        )


def _lacking_precisions(bundle: Bundle, model: ModelConfig) -> list[str]:
    faults = []
    for stroke, section in ((Stroke.PREFILL, model.prefill), (Stroke.DECODE, model.decode)):
        held = [g.quantisation.precision for g in bundle.manifest.graphs if g.stroke is stroke]
        if section.precision is not None and section.precision not in held:
            faults.append(
                f"{stroke}.precision is {section.precision}, but the bundle {bundle.root} of "
                f"{model.name!r} holds {stroke} in {', '.join(dict.fromkeys(held))}; leave it out, "
                f"or export the model with --{stroke}-precision {section.precision}."
            )
    return faults


def _other_cache(bundle: Bundle, model: ModelConfig) -> list[str]:
    found, asked = bundle.manifest.kv_dtype, model.kv.dtype
    if asked in ("auto", found):
        return []
    flags = {
        "float32": "--kv-dtype auto --activations fp32",
        "float16": "--kv-dtype auto --activations fp16",
        "bfloat16": "--kv-dtype auto --activations bf16",
        "int8": "--kv-dtype int8",
    }
    return [
        f"kv.dtype is {asked}, but the graphs of {model.name!r} keep their cache in {found}; write "
        f"auto, or export the model with {flags[asked]}."
    ]
