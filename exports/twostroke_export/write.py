"""Writes the graphs, the weights and the other files of one bundle."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from twostroke.bundle.manifest import Manifest, graph_file
from twostroke.types import Stroke
from twostroke_export import assets
from twostroke_export.balance import balance
from twostroke_export.calibrated import calibrate
from twostroke_export.calibration import calibration_ids
from twostroke_export.facts import describe
from twostroke_export.passes.fuse import finish, pack
from twostroke_export.passes.lower import lower
from twostroke_export.passes.standard.standardise import standardise
from twostroke_export.prepare import Prepared, Report
from twostroke_export.recipe import Recipe
from twostroke_export.weights import WeightFile


def write_bundle(
    prepared: Prepared, recipe: Recipe, folder: Path, name: str | None, report: Report
) -> Manifest:
    """Fills the bundle's folder; the manifest still lacks what is measured.

    Mutates the model of `prepared` where the precision wants other weights than it has: int8
    balances them, and half floats cast them.
    """
    if "int8" in recipe.precisions:
        graphs = [prepared.graph(stroke) for stroke in Stroke]  # both read the same parameters
        ids = calibration_ids(prepared.loaded, prepared.context_tokens)
        balance(prepared.loaded.model, graphs[0].graph, ids)
    calibrated = calibrate(prepared, recipe, lambda fraction: report("choose bits", 0.5 * fraction))
    prepared.cast(recipe.activations)
    with WeightFile(folder) as weights:
        for number, stroke in enumerate(Stroke):
            report(f"trace {stroke}", 0.5 + 0.25 * number)
            model = prepared.graph(stroke).clone()
            report(f"write {stroke}", 0.65 + 0.25 * number)
            lowering = calibrated.lowering(recipe, stroke)
            pack(model.graph, lowering)  # behind `balance`, which looks for the parts
            lower(model.graph, lowering, weights)
            finish(model.graph)
            common.RemoveUnusedNodesPass()(model)  # what only read the old weights
            _save(model, stroke, recipe, weights, folder)
    assets.write_assets(prepared.source, prepared.loaded, folder)
    return describe(
        prepared.source,
        prepared.loaded,
        prepared.observed,
        recipe,
        calibrated,
        context_tokens=prepared.context_tokens,
        name=name,
    )


def _save(
    model: ir.Model, stroke: Stroke, recipe: Recipe, weights: WeightFile, folder: Path
) -> None:
    """Saves a lowered graph in each dialect of the recipe. Mutates it."""
    graphs = {
        dialect: model if dialect == "fused" else model.clone() for dialect in recipe.dialects
    }
    for dialect, graph in graphs.items():
        if dialect == "standard":
            standardise(graph, weights)
        weights.store_initializers(graph.graph)
        ir.save(graph, folder / graph_file(stroke, dialect))
