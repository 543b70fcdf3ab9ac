"""What the manifest says of an export before it is verified."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version

from twostroke.bundle.manifest import Architecture, KVLayer, Manifest, Quantisation
from twostroke_export import assets
from twostroke_export.load import Loaded
from twostroke_export.observe import Observed
from twostroke_export.passes.lower import ACCURACY_LEVEL, PRECISIONS
from twostroke_export.quantise import BLOCK_SIZE
from twostroke_export.source import Source

_PACKAGES = ("torch", "transformers", "optimum", "onnx", "onnxscript", "onnx-ir", "twostroke")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")


def describe(
    source: Source,
    loaded: Loaded,
    observed: Observed,
    *,
    precision: str,
    context_tokens: int,
    name: str | None,
) -> Manifest:
    """The manifest without files, verification and self-check.

    Raises:
        ExportError: a special id lies outside the vocabulary.
    """
    model, layers = loaded.model, observed.layers
    bits = PRECISIONS[precision]
    quantisation = Quantisation(precision=precision)
    if bits.layers is not None:
        quantisation = Quantisation(
            precision=precision, block_size=BLOCK_SIZE, accuracy_level=ACCURACY_LEVEL
        )
    return Manifest(
        name=name or source.name,
        architecture=Architecture(
            model_type=model.config.model_type,
            num_layers=len(layers),
            hidden_size=int(model.get_input_embeddings().weight.shape[1]),
            num_heads=layers[0].num_heads,
            vocab_size=loaded.vocab_size,
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        ),
        context_tokens=context_tokens,
        kv_dtype="float16" if precision == "fp16" else "float32",
        kv_layers=tuple(
            KVLayer(num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim) for layer in layers
        ),
        quantisation=quantisation,
        tokens=assets.special_ids(source, loaded),
        generation=assets.generation_defaults(source),
        source=source.facts,
        exporter=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in (*_PACKAGES, *_RUNTIMES):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
