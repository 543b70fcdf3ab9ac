"""Writes the graphs, the weights and the other files of one bundle."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from twostroke.backends.protocol import dtype_bytes
from twostroke.bundle.manifest import Manifest, graph_file
from twostroke.cli.progress import size
from twostroke.types import Stroke
from twostroke_export import assets
from twostroke_export.balance import balance
from twostroke_export.calibrated import calibrate
from twostroke_export.calibration import calibration_ids
from twostroke_export.facts import describe
from twostroke_export.footprint import Stored, count, estimate, footprint
from twostroke_export.kv_scales import kv_scales
from twostroke_export.passes.fuse import finish, pack
from twostroke_export.passes.lower import lower
from twostroke_export.passes.quantise_kv import quantise_kv
from twostroke_export.passes.standard.standardise import standardise
from twostroke_export.precision import ACCURACY_LEVEL, MIXED
from twostroke_export.prepare import Prepared, Report
from twostroke_export.recipe import Recipe
from twostroke_export.weights import WeightFile

log = logging.getLogger(__name__)

# Measured: what lowering takes of tracing and lowering, and choosing bits of what is left then.
_LOWERING, _CHOOSING = 0.1, 0.6


def write_bundle(
    prepared: Prepared, recipe: Recipe, folder: Path, name: str | None, report: Report
) -> Manifest:
    """Fills the bundle's folder; the manifest still lacks what is measured.

    Mutates the model of `prepared` where the precision wants other weights than it has: int8
    balances them, and half floats cast them.
    """
    tell_of_weights(prepared, recipe)
    ids = calibration_ids(prepared.loaded, prepared.context_tokens)
    done = 0.0
    if "int8" in recipe.precisions:
        # What is traced later reads the same parameters.
        report("trace prefill", 0.0)
        traced = prepared.graph(Stroke.PREFILL)
        report("balance", 0.4)
        balance(prepared.loaded.model, traced.graph, ids)
        done = 0.5
    scales = None
    if recipe.has_int8_kv:  # behind `balance`, which rescales values
        scales = kv_scales(prepared.loaded.model, prepared.observed, ids)
    left = (1.0 - done) * (_CHOOSING if "mixed" in recipe.precisions else 0.0)
    choosing = partial(_within, report, done, left, "choose bits")
    calibrated = calibrate(prepared, recipe, choosing)
    prepared.cast(recipe.activations)
    writing = _shares(prepared, done + left)
    stored: dict[Stroke, Stored] = {}
    with WeightFile(folder) as weights:
        for stroke in Stroke:
            if stroke not in prepared.graphs:
                report(f"trace {stroke}", writing[stroke][0])
            model = prepared.graph(stroke).clone()
            report(f"write {stroke}", writing[stroke][1])
            lowering = calibrated.lowering(recipe, stroke)
            pack(model.graph, lowering)  # behind `balance`, which looks for the parts
            lower(model.graph, lowering, weights)
            if scales is not None:
                quantise_kv(model.graph, scales)
            finish(model.graph)
            common.RemoveUnusedNodesPass()(model)  # what only read the old weights
            graphs = _save(model, stroke, recipe, weights, folder)
            stored[stroke] = count(graphs)
    assets.write_assets(prepared.source, prepared.loaded, folder)
    return describe(
        prepared.source,
        prepared.loaded,
        prepared.observed,
        recipe,
        calibrated,
        context_tokens=prepared.context_tokens,
        name=name,
        weights=footprint(stored[Stroke.PREFILL], stored[Stroke.DECODE]),
    )


def tell_of_weights(prepared: Prepared, recipe: Recipe) -> None:
    """Warns of what a recipe's weights take, before anything is done about it."""
    model = prepared.loaded.model
    _tell_of_embedding(model, recipe)
    _tell_of_accuracy(recipe)
    if recipe.prefill == recipe.decode:
        return
    stored = {stroke: estimate(model, recipe.lowering(stroke)) for stroke in Stroke}
    both = footprint(stored[Stroke.PREFILL], stored[Stroke.DECODE])
    log.warning(
        "two precisions: prefill reads %s %s of %s weights and decode %s of %s, %s of it "
        "shared: %s in memory and on disk; %s for both strokes would take %s, %s %s",
        "at most" if MIXED in recipe.precisions else "about",  # its bits are not chosen yet
        *(size(both.prefill_bytes), recipe.prefill, size(both.decode_bytes), recipe.decode),
        *(size(both.shared_bytes), size(both.total_bytes)),
        *(recipe.prefill, size(both.prefill_bytes), recipe.decode, size(both.decode_bytes)),
    )


def _tell_of_embedding(model: Any, recipe: Recipe) -> None:
    """Says where the embedding cannot be quantised: its operator takes whole blocks only."""
    rows, columns = model.get_input_embeddings().weight.shape
    lowerings = [recipe.lowering(stroke) for stroke in Stroke]
    if columns % recipe.block_size and any(lowering.head for lowering in lowerings):
        log.warning(
            "the embedding stays in floats (%s): its %d columns do not make whole blocks of %d; "
            "a smaller --block-size may fit",
            size(rows * columns * dtype_bytes(recipe.activations)),
            columns,
            recipe.block_size,
        )


def _tell_of_accuracy(recipe: Recipe) -> None:
    is_quantised = any(recipe.lowering(stroke).head for stroke in Stroke)
    if is_quantised and recipe.accuracy_level < ACCURACY_LEVEL:
        log.warning(
            "accuracy level %d multiplies in floats: on the CPU a step of int8 weights takes ten "
            "times as long as with level %d, of int4 weights twice",
            recipe.accuracy_level,
            ACCURACY_LEVEL,
        )


def _shares(prepared: Prepared, done: float) -> dict[Stroke, tuple[float, float]]:
    """Where tracing and writing of each stroke begin, of the whole of `write_bundle`."""
    traces = {stroke: 0.0 if stroke in prepared.graphs else 1.0 - _LOWERING for stroke in Stroke}
    unit = (1.0 - done) / sum(traced + _LOWERING for traced in traces.values())
    starts = {}
    for stroke, traced in traces.items():
        starts[stroke] = (done, done + unit * traced)
        done += unit * (traced + _LOWERING)
    return starts


def _within(report: Report, start: float, share: float, stage: str, fraction: float) -> None:
    report(stage, start + share * fraction)


def _save(
    model: ir.Model, stroke: Stroke, recipe: Recipe, weights: WeightFile, folder: Path
) -> list[ir.Graph]:
    """Saves a lowered graph in each dialect of the recipe; answers them. Mutates it."""
    graphs = {
        dialect: model if dialect == "fused" else model.clone() for dialect in recipe.dialects
    }
    for dialect, graph in graphs.items():
        if dialect == "standard":
            standardise(graph, weights)
        weights.store_initializers(graph.graph)
        ir.save(graph, folder / graph_file(stroke, dialect))
    return [model.graph for model in graphs.values()]
