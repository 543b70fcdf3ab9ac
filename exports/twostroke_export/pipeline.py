"""From a source to sealed bundles: load, measure, trace, lower, write, verify."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from twostroke.backends.hookspecs import ExportOptions, Progress
from twostroke.bundle import seal, sealing
from twostroke.bundle.manifest import Manifest
from twostroke_export.float32_twin import runnable
from twostroke_export.heap import release
from twostroke_export.parity import judge, measure
from twostroke_export.prepare import Report, prepare
from twostroke_export.recipe import Recipe, check_precisions, recipe_of
from twostroke_export.reference import Reference
from twostroke_export.source import Source, find
from twostroke_export.write import write_bundle

OnProgress = Callable[[Progress], None]
_ORDER = ("fp32", "mixed", "int4", "int8", "fp16", "bf16")
_PREPARED, _WRITTEN = 0.25, 0.9  # of the whole, when loading and when writing has ended


def export(options: ExportOptions, on_progress: OnProgress, source: Source | None = None) -> Path:
    """Turns `options.source` into one bundle at `options.out`; see `export_recipes`.

    `source` is what was found there, where somebody has looked already.
    """
    export_recipes(
        source or find(options.source, options.adapter),
        {options.out: recipe_of(options)},
        context_tokens=options.context_tokens,
        name=options.name,
        on_progress=on_progress,
    )
    return options.out.absolute()


def export_all(
    source: str,
    outs: Mapping[str, Path],
    *,
    context_tokens: int | None = None,
    name: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> dict[str, Path]:
    """A bundle for each precision of `outs`, everything else as by default; see `export_recipes`.

    Raises:
        ExportError, BundleError: as `export_recipes`.
    """
    check_precisions(outs)
    recipes = {out: Recipe(precision, precision) for precision, out in outs.items()}
    export_recipes(
        source, recipes, context_tokens=context_tokens, name=name, on_progress=on_progress
    )
    return {precision: out.absolute() for precision, out in outs.items()}


def export_recipes(
    source: str | Source,
    recipes: Mapping[Path, Recipe],
    *,
    context_tokens: int | None = None,
    name: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> None:
    """Makes a bundle for each recipe from one load and one trace of each stroke.

    Every bundle is written before the first is verified: the source model is let go in between,
    so that it and the sessions of the checks are never in memory together.

    Raises:
        ExportError: the source cannot be read, traced, or does not agree with its export.
        BundleError: a folder exists or cannot be written.
    """
    with contextlib.ExitStack() as stack:
        # Entered first: a folder that exists is refused before the heavy work.
        folders = {out: stack.enter_context(sealing(out)) for out in recipes}
        dialects = {dialect for recipe in recipes.values() for dialect in recipe.dialects}
        loading = _scaled(on_progress, 0.0, _PREPARED)
        prepared = prepare(source, context_tokens, loading, dialects)
        # int8 rescales the model's own weights and half floats replace them, so they come last.
        outs = sorted(recipes, key=lambda out: _turn(recipes[out]))
        manifests: dict[Path, Manifest] = {}
        share = (_WRITTEN - _PREPARED) / len(outs)
        for number, out in enumerate(outs):
            report = _scaled(on_progress, _PREPARED + number * share, share)
            manifests[out] = write_bundle(prepared, recipes[out], folders[out], name, report)
        reference, model_name = prepared.reference, prepared.source.name
        del prepared
        release()
        share = (1.0 - _WRITTEN) / len(outs)
        for number, out in enumerate(outs):
            report = _scaled(on_progress, _WRITTEN + number * share, share)
            _verify(model_name, folders[out], manifests[out], reference, report)
    on_progress(Progress("done", 1.0))


def _turn(recipe: Recipe) -> tuple[bool, int]:
    return recipe.activations != "float32", max(map(_ORDER.index, recipe.precisions))


def _verify(
    name: str, folder: Path, manifest: Manifest, reference: Reference, report: Report
) -> None:
    """Measures each dialect of a folder against its source and seals it."""
    share = 0.95 / len(manifest.dialects)
    measured = []
    with runnable(folder, manifest) as (runs_in, measured_in):
        for number, dialect in enumerate(manifest.dialects):
            graphs = [graph for graph in manifest.graphs if graph.dialect == dialect]
            kv_dtype = graphs[-1].kv_dtype
            precisions = [graph.quantisation.precision for graph in graphs]
            verifying = functools.partial(_verifying, report, number * share, share)
            found = measure(
                runs_in,
                manifest.kv_layers,
                measured_in if measured_in and kv_dtype != "int8" else kv_dtype,
                reference,
                verifying,
                dialect,
                is_pair=len(set(precisions)) > 1,
            )
            judge(name, precisions, found, reference, is_exact=kv_dtype != "int8")
            measured.append(found)
    report("seal", 0.95)
    figures = {
        "verifications": tuple(
            found.verification.model_copy(update={"measured_in": measured_in}) for found in measured
        ),
        "self_check": measured[0].self_check,
    }
    seal(folder, manifest.model_copy(update=figures))


def _verifying(report: Report, start: float, share: float, fraction: float) -> None:
    report("verify", start + share * fraction)


def _scaled(on_progress: OnProgress, start: float, share: float) -> Report:
    return lambda stage, fraction: on_progress(Progress(stage, start + share * fraction))
