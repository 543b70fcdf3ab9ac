"""The exporter as a plugin; light to import, torch and transformers come in with `export`."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from twostroke.backends import API_VERSION, hookimpl
from twostroke.backends.hookspecs import ExporterSpec, ExportOptions, Progress
from twostroke.errors import InstallError
from twostroke.install import check_install

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "mixed", "int4")
_NEEDED = (
    "torch",
    "transformers",
    "optimum",
    "accelerate",
    "huggingface_hub",
    "safetensors",
    "onnx",
    "onnxscript",
    "onnx_ir",
    "gguf",
)

_IMPORTS = 0.1  # their share of exporting a model of a hundred million parameters, as measured

# Tracing swaps functions inside transformers' modules, which are shared by all threads.
_one_at_a_time = threading.Lock()


def export(options: ExportOptions, on_progress: Callable[[Progress], None]) -> Path:
    """Turns `options.source` into a bundle at `options.out`; see `export_several`."""
    return export_several([options], on_progress)[0]


def export_several(
    options: Sequence[ExportOptions], on_progress: Callable[[Progress], None]
) -> list[Path]:
    """A bundle for each of `options`, which differ in precision and folder, from one load.

    Raises:
        InstallError: a package of the `export` extra is missing, or ONNX Runtime is.
        ExportError: the options do not go together, or the source cannot be read, traced, or does
            not agree with its export.
        BundleError: an `out` exists or cannot be written.
    """
    check_install()
    _check_packages(_NEEDED)
    on_progress(Progress("check the source", 0.0))
    from twostroke_export.recipe import recipe_of
    from twostroke_export.source import find

    # What is wrong is said before the seconds that the next imports take.
    for one in options:
        recipe_of(one)
    source = find(options[0].source, options[0].adapter)
    on_progress(Progress("import torch and transformers", 0.0))
    from twostroke_export.pipeline import export_several as run

    with _one_at_a_time:
        return run(options, _behind_imports(on_progress), source)


def split(root: Path, num_front_layers: int) -> None:
    """Adds the halves of a bundle's graphs to it; see `twostroke_export.split`.

    Raises:
        InstallError: a package of the `export` extra is missing.
        ExportError, BundleError: as `split_bundle`.
    """
    _check_packages(("onnx_ir",))
    from twostroke_export.split import split_bundle

    split_bundle(root, num_front_layers)


def _check_packages(names: Sequence[str]) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise InstallError(
            f"Exporting needs the Python package {missing[0]!r}, which is not installed; "
            f'run: pip install "twostroke[export]"'
        )


def _behind_imports(on_progress: Callable[[Progress], None]) -> Callable[[Progress], None]:
    rest = 1.0 - _IMPORTS
    return lambda told: on_progress(Progress(told.stage, _IMPORTS + rest * told.fraction))


@hookimpl
def twostroke_exporters() -> list[ExporterSpec]:
    """The exporter for Hugging Face folders, hub ids and .gguf files."""
    return [
        ExporterSpec(
            name="transformers",
            api_version=API_VERSION,
            summary="traces transformers models from a folder, a hub id or a .gguf file",
            precisions=PRECISIONS,
            export=export,
            export_several=export_several,
            split=split,
        )
    ]
