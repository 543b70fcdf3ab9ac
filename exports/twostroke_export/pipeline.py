"""From a source to sealed bundles: load, measure, trace, lower, write, verify."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from twostroke.backends.hookspecs import ExportOptions, Progress
from twostroke.bundle import seal, sealing
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export import assets
from twostroke_export.balance import balance
from twostroke_export.calibration import calibration_ids
from twostroke_export.context import context_limit, effective_context
from twostroke_export.facts import describe
from twostroke_export.load import Loaded, load
from twostroke_export.observe import Observed, observe
from twostroke_export.parity import judge, measure
from twostroke_export.passes.lower import PRECISIONS, lower
from twostroke_export.passes.pack_gate_up import pack_gate_up
from twostroke_export.passes.pack_qkv import pack_qkv
from twostroke_export.passes.silu import fuse_silu
from twostroke_export.passes.simplify import simplify
from twostroke_export.passes.skip_norm import fuse_skip_norm
from twostroke_export.reference import Reference, measure_reference
from twostroke_export.source import Source, resolve
from twostroke_export.trace import trace
from twostroke_export.weights import WeightFile

OnProgress = Callable[[Progress], None]
Report = Callable[[str, float], None]  # a stage and its fraction, 0 to 1
_ORDER = ("fp32", "int4", "int8", "fp16")
_PREPARED = 0.25  # the share of the whole that loading and measuring take


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that was loaded and measured; every precision is made from its two traces.

    graphs: traced on first use and kept; cloned by whoever changes them.
    """

    source: Source
    loaded: Loaded
    observed: Observed
    reference: Reference
    context_tokens: int
    graphs: dict[Stroke, ir.Model] = field(default_factory=dict)

    def graph(self, stroke: Stroke) -> ir.Model:
        """The simplified graph of a stroke."""
        if stroke not in self.graphs:
            model = trace(self.loaded.model, self.observed, stroke, self.context_tokens)
            simplify(model)
            fuse_skip_norm(model.graph)
            fuse_silu(model.graph)
            self.graphs[stroke] = model
        return self.graphs[stroke]


def export(options: ExportOptions, on_progress: OnProgress) -> Path:
    """Turns `options.source` into one bundle at `options.out`; see `export_all`."""
    return export_all(
        options.source,
        {options.precision: options.out},
        context_tokens=options.context_tokens,
        name=options.name,
        on_progress=on_progress,
    )[options.precision]


def export_all(
    source: str,
    outs: Mapping[str, Path],
    *,
    context_tokens: int | None = None,
    name: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> dict[str, Path]:
    """Makes a bundle for each precision of `outs` from one load and one trace of each stroke.

    Each bundle is written whole or not at all; those that were sealed before a failure stay.

    Raises:
        ExportError: the source cannot be read, traced, or does not agree with its export.
        BundleError: an `out` exists or cannot be written.
    """
    check_precisions(outs)
    with contextlib.ExitStack() as stack:
        # Entered first: a folder that exists is refused before the heavy work.
        folders = {key: stack.enter_context(sealing(out)) for key, out in outs.items()}
        prepared = _prepare(source, context_tokens, on_progress)
        share = (1.0 - _PREPARED) / len(folders)
        # int8 rescales the model's own weights and fp16 halves them, so they come last.
        for number, precision in enumerate(sorted(folders, key=_ORDER.index)):
            report = _scaled(on_progress, _PREPARED + number * share, share)
            _finish(prepared, precision, folders[precision], name, report)
    on_progress(Progress("done", 1.0))
    return {key: out.absolute() for key, out in outs.items()}


def check_precisions(precisions: Iterable[str]) -> None:
    """Refuses an unknown precision, naming the known ones.

    Raises:
        ExportError: an unknown precision.
    """
    for precision in precisions:
        if precision not in PRECISIONS:
            raise ExportError(
                f"The precision {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}."
            )


def _prepare(source: str, context_tokens: int | None, on_progress: OnProgress) -> Prepared:
    on_progress(Progress("load", 0.0))
    found = resolve(source)
    effective_context(found.name, found.limit_tokens, context_tokens)  # refused before the load
    loading = _scaled(on_progress, 0.0, 0.2)
    loaded = load(found, lambda fraction: loading("load", fraction))
    limit = effective_context(found.name, context_limit(loaded.model.config), context_tokens)
    observed = observe(loaded.model)
    on_progress(Progress("measure the source", 0.2))
    reference = measure_reference(loaded, limit)
    return Prepared(found, loaded, observed, reference, limit)


def _finish(
    prepared: Prepared, precision: str, folder: Path, name: str | None, report: Report
) -> None:
    """Fills the bundle's folder and seals it."""
    if precision == "int8":
        graphs = [prepared.graph(stroke) for stroke in Stroke]  # both read the same parameters
        ids = calibration_ids(prepared.loaded, prepared.context_tokens)
        balance(prepared.loaded.model, graphs[0].graph, ids)
    if precision == "fp16":
        halve(prepared.loaded.model)
        prepared.graphs.clear()
    with WeightFile(folder) as weights:
        for number, stroke in enumerate(Stroke):
            report(f"trace {stroke}", 0.25 * number)
            model = prepared.graph(stroke).clone()
            report(f"write {stroke}", 0.25 * number + 0.2)
            pack(model.graph, precision)  # behind `balance`, which looks for the parts
            lower(model.graph, precision, weights)
            common.RemoveUnusedNodesPass()(model)  # what only read the old weights
            weights.store_initializers(model.graph)
            ir.save(model, folder / f"{stroke}.onnx")
    assets.write_assets(prepared.source, prepared.loaded, folder)
    manifest = describe(
        prepared.source,
        prepared.loaded,
        prepared.observed,
        precision=precision,
        context_tokens=prepared.context_tokens,
        name=name,
    )
    verifying = _scaled_report(report, 0.5, 0.45)
    measured = measure(
        folder,
        manifest.kv_layers,
        manifest.kv_dtype,
        prepared.reference,
        lambda fraction: verifying("verify", fraction),
    )
    judge(prepared.source.name, precision, measured, prepared.reference)
    report("seal", 0.95)
    figures = {"verification": measured.verification, "self_check": measured.self_check}
    seal(folder, manifest.model_copy(update=figures))


def pack(graph: ir.Graph, precision: str) -> None:
    """Packs products that read one value, where one is faster than its parts. Mutates."""
    pack_qkv(graph)
    # In floats a prompt loses more to parting gate from up than either stroke gains.
    if PRECISIONS[precision].layers is not None:
        pack_gate_up(graph)


def halve(model: Any) -> None:
    """Casts the weights to float16 and leaves buffers (rotary frequencies) alone. Mutates."""
    for parameter in model.parameters():
        parameter.data = parameter.data.half()


def _scaled(on_progress: OnProgress, start: float, share: float) -> Report:
    return lambda stage, fraction: on_progress(Progress(stage, start + share * fraction))


def _scaled_report(report: Report, start: float, share: float) -> Report:
    return lambda stage, fraction: report(stage, start + share * fraction)
