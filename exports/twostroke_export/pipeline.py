"""From a source to sealed bundles: load, measure, trace, lower, write, verify."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from twostroke.backends.hookspecs import ExportOptions, Progress
from twostroke.bundle import seal, sealing
from twostroke.bundle.manifest import Manifest
from twostroke.errors import ExportError
from twostroke.evaluation import read_text
from twostroke.evaluation.record import with_evaluation
from twostroke_export.evaluate import Sample, evaluate, take_sample
from twostroke_export.float32_twin import runnable
from twostroke_export.heap import release
from twostroke_export.parity import judge, measure
from twostroke_export.prepare import Prepared, Report, prepare
from twostroke_export.recipe import Recipe, check_precisions, recipe_of
from twostroke_export.reference import Reference
from twostroke_export.source import Source, find
from twostroke_export.write import write_bundle

OnProgress = Callable[[Progress], None]
_ORDER = ("fp32", "mixed", "int4", "int8", "fp16", "bf16")
# What each of several bundles made at once has for itself.
_OWN = (
    *("out", "precision", "prefill_precision", "decode_precision"),
    *("mixed_kl", "mixed_budget_bytes"),
)
_PREPARED, _WRITTEN = 0.25, 0.9  # of the whole, when loading and when writing has ended


def export(options: ExportOptions, on_progress: OnProgress, source: Source | None = None) -> Path:
    """Turns `options.source` into one bundle at `options.out`; see `export_recipes`.

    `source` is what was found there, where somebody has looked already.
    """
    return export_several([options], on_progress, source)[0]


def export_several(
    options: Sequence[ExportOptions], on_progress: OnProgress, source: Source | None = None
) -> list[Path]:
    """A bundle for each of `options`, which are of one source and differ in precision at most.

    Raises:
        ExportError: they are not; and as `export_recipes`.
    """
    first, *others = options
    shared = [replace(other, **{name: getattr(first, name) for name in _OWN}) for other in others]
    if any(other != first for other in shared) or len({one.out for one in options}) < len(options):
        raise ExportError(
            "Several bundles can be made at once of one source, each in a folder of its own; they "
            "may differ in precision and nothing else."
        )
    export_recipes(
        source or find(first.source, first.adapter),
        {one.out: recipe_of(one) for one in options},
        context_tokens=first.context_tokens,
        name=first.name,
        evaluate_on=first.evaluate,
        on_progress=on_progress,
    )
    return [one.out.absolute() for one in options]


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
    evaluate_on: Path | None = None,
    on_progress: OnProgress = lambda _: None,
) -> None:
    """Makes a bundle for each recipe from one load and one trace of each stroke.

    Every bundle is written before the first is verified: the source model is let go in between,
    so that it and the sessions of the checks are never in memory together. With a text to
    `evaluate_on` every bundle is also measured on that.

    Raises:
        RequestError: the text cannot be read, or there is nothing to predict in it.
        ExportError: the source cannot be read, traced, or does not agree with its export.
        BundleError: a folder exists or cannot be written.
    """
    text = None if evaluate_on is None else read_text(evaluate_on)
    with contextlib.ExitStack() as stack:
        # Entered first: a folder that exists is refused before the heavy work.
        folders = {out: stack.enter_context(sealing(out)) for out in recipes}
        dialects = {dialect for recipe in recipes.values() for dialect in recipe.dialects}
        loading = _scaled(on_progress, 0.0, _PREPARED)
        prepared = prepare(source, context_tokens, loading, dialects)
        sample = None
        if text is not None:
            report = _scaled(on_progress, _PREPARED, 0.0)
            sample = take_sample(prepared, text, functools.partial(report, "evaluate the source"))
            stack.callback(sample.close)
        manifests = _write_all(prepared, recipes, folders, name, on_progress)
        reference, model_name = prepared.reference, prepared.source.name
        del prepared
        release()
        share = (1.0 - _WRITTEN) / len(recipes)
        for number, (out, written) in enumerate(manifests.items()):
            report = _scaled(on_progress, _WRITTEN + number * share, share)
            manifest = _verify(model_name, folders[out], written, reference, sample, report)
            report("seal", 1.0)
            seal(folders[out], manifest)
    on_progress(Progress("done", 1.0))


def _write_all(
    prepared: Prepared,
    recipes: Mapping[Path, Recipe],
    folders: Mapping[Path, Path],
    name: str | None,
    on_progress: OnProgress,
) -> dict[Path, Manifest]:
    """Fills every folder; the manifests still lack what is measured. Mutates the model."""
    # int8 rescales the model's own weights and half floats replace them, so they come last.
    outs = sorted(recipes, key=lambda out: _turn(recipes[out]))
    share = (_WRITTEN - _PREPARED) / len(outs)
    manifests = {}
    for number, out in enumerate(outs):
        report = _scaled(on_progress, _PREPARED + number * share, share)
        manifests[out] = write_bundle(prepared, recipes[out], folders[out], name, report)
    return manifests


def _turn(recipe: Recipe) -> tuple[bool, int]:
    return recipe.activations != "float32", max(map(_ORDER.index, recipe.precisions))


def _verify(
    name: str,
    folder: Path,
    manifest: Manifest,
    reference: Reference,
    sample: Sample | None,
    report: Report,
) -> Manifest:
    """Measures each dialect of a folder against its source; the manifest with the figures.

    With a `sample` the default's graphs are measured on that, too.
    """
    share = (1.0 if sample is None else 0.5) / len(manifest.dialects)
    measured = []
    with runnable(folder, manifest) as (runs_in, measured_in):
        for number, dialect in enumerate(manifest.dialects):
            graphs = [graph for graph in manifest.graphs if graph.dialect == dialect]
            kv_dtype = graphs[-1].kv_dtype
            cache_dtype = measured_in if measured_in and kv_dtype != "int8" else kv_dtype
            precisions = [graph.quantisation.precision for graph in graphs]
            verifying = functools.partial(_verifying, report, number * share, share)
            found = measure(
                runs_in,
                manifest.kv_layers,
                cache_dtype,
                reference,
                verifying,
                dialect,
                is_pair=len(set(precisions)) > 1,
            )
            judge(name, precisions, found, reference, is_exact=kv_dtype != "int8")
            measured.append(found)
        if sample is not None:
            evaluating = functools.partial(_part(report, 0.5, 0.5), "evaluate")
            found_on = evaluate(runs_in, manifest, sample, evaluating, measured_in)
            manifest = with_evaluation(manifest, found_on)
    figures = {
        "verifications": tuple(
            found.verification.model_copy(update={"measured_in": measured_in}) for found in measured
        ),
        "self_check": measured[0].self_check,
    }
    return manifest.model_copy(update=figures)


def _verifying(report: Report, start: float, share: float, fraction: float) -> None:
    report("verify", start + share * fraction)


def _part(report: Report, start: float, share: float) -> Report:
    return lambda stage, fraction: report(stage, start + share * fraction)


def _scaled(on_progress: OnProgress, start: float, share: float) -> Report:
    return lambda stage, fraction: on_progress(Progress(stage, start + share * fraction))
