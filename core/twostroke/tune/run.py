"""The whole of `twostroke tune`: list, load, measure, rank. Writes nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import Progress
from twostroke.bundle import Bundle, is_bundle, is_foreign
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.errors import BackendError, ConfigError
from twostroke.life.memory import kv_bytes_per_token
from twostroke.model.precisions import check_precisions, export_options
from twostroke.source import locate, open_resolved, resolve_source
from twostroke.tune.finals import measure_together
from twostroke.tune.opened import OpenVariants
from twostroke.tune.pairs import Pair, choose, finalists, make_pairs, ranked
from twostroke.tune.rounds import Report, StrokeTimer, hopeless, in_turns
from twostroke.tune.settings import TuneSettings, Workload
from twostroke.tune.variants import Listing, Skipped, Variant
from twostroke.types import Stroke

log = logging.getLogger(__name__)

_NUM_FINALISTS = 4
_FINALS_SHARE = 0.4  # of the time


@dataclass(frozen=True, slots=True)
class Candidates:
    """What would be measured, and what would not."""

    variants: tuple[Variant, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """A pair with the memory that it takes: weights, workspace and the cache of all streams."""

    pair: Pair
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found, best first. `chosen` is what should be written; None: nothing can run.

    `current` is what the YAML says; None where that cannot be had. `load` is what the machine did
    beside, in processors, `num_processors` those it has.
    """

    workload: Workload
    standings: tuple[Standing, ...]
    chosen: Standing | None
    current: Standing | None
    skipped: tuple[Skipped, ...]
    load: float | None
    num_processors: int


def candidates(
    model: ModelConfig, plugins: Plugins, settings: TuneSettings, report: Report
) -> Candidates:
    """Everything that could be measured; exports what must be exported for that.

    Raises:
        ConfigError: the requests are longer than the model's context.
        BackendError: a stroke can run nowhere.
        TwostrokeError: the model cannot be found or exported.
    """
    listing = Listing(model, plugins, is_quick=settings.is_quick)
    bundles, skipped = _bundles(model, plugins, settings, listing.dialects(), report)
    check_precisions(bundles[0], model)
    _check_context(bundles[0], model, settings.workload)
    by_stroke = {stroke: listing.variants(stroke, bundles) for stroke in Stroke}
    skipped = [*listing.skipped, *skipped]
    for stroke, listed in by_stroke.items():
        if not listed:
            reasons = "; ".join(f"{each.what}: {each.reason}" for each in skipped)
            raise BackendError(f"{stroke} can run nowhere here. {reasons}")
    return Candidates(tuple(v for listed in by_stroke.values() for v in listed), tuple(skipped))


def tune(
    found: Candidates,
    scheduler: SchedulerConfig,
    plugins: Plugins,
    settings: TuneSettings,
    report: Report,
) -> Tuned:
    """Measures the candidates in turns, then the best pairs together.

    Raises:
        TwostrokeError: a run failed.
    """
    workload, chunk_tokens = settings.workload, scheduler.prefill_chunk_tokens
    given = None if chunk_tokens == "auto" else chunk_tokens
    with OpenVariants(plugins, workload, given) as variants:
        timers = _timers(found.variants, variants, workload, report)
        _measure_apart(timers, variants, settings.seconds * (1 - _FINALS_SHARE), report)
        pairs = make_pairs(timers, workload)
        best = finalists(pairs, 2 if settings.is_quick else _NUM_FINALISTS)
        seconds = settings.seconds * _FINALS_SHARE
        best = measure_together(best, variants, workload, seconds, report)
        best = ranked(best, workload)
        chosen = choose(best, workload, may_change_precision=settings.may_change_precision)
        standings = [Standing(pair, _memory(pair, variants, workload)) for pair in best]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Tuned(
        workload,
        tuple(standings),
        next((s for s in standings if s.pair is chosen), None),
        next((s for s in standings if s.pair.is_current), None),
        (*found.skipped, *variants.skipped),
        load,
        os.cpu_count() or 1,
    )


def _measure_apart(
    timers: Sequence[StrokeTimer], variants: OpenVariants, seconds: float, report: Report
) -> None:
    """Fills the timers' figures, but for those that are far too slow to be worth it."""
    by_name = {f"{t.opened.variant.stroke} on {t.opened.variant.name}": t for t in timers}

    def drop(names: Sequence[str]) -> Collection[str]:
        slow = hopeless(by_name)
        for name, ratio in slow.items():
            reason = f"its first runs took {ratio:.1f} times as long as the best ones"
            variants.skipped.append(Skipped(name, reason))
        for timer in timers:
            timer.is_counting = True
        return slow

    in_turns(by_name, seconds, report, "strokes", drop)


def _timers(
    listed: Sequence[Variant],
    variants: OpenVariants,
    workload: Workload,
    report: Report,
) -> list[StrokeTimer]:
    timers = []
    for number, variant in enumerate(listed):
        stage = f"loading {variant.stroke} for {variant.name}"
        report(Progress(stage, number / len(listed)))
        opened = variants.open(variant)
        if opened is not None:
            timers.append(
                StrokeTimer(opened, workload, variants.chunk_tokens(opened.graph.backend))
            )
    for stroke in Stroke:
        if all(timer.opened.variant.stroke is not stroke for timer in timers):
            reasons = "; ".join(f"{each.what}: {each.reason}" for each in variants.skipped)
            raise BackendError(f"{stroke} can run nowhere here. {reasons}")
    return timers


def _memory(pair: Pair, variants: OpenVariants, workload: Workload) -> int:
    most = max(workload.streams)
    graphs = (pair.prefill.graph, pair.decode.graph)
    layers = pair.decode.variant.bundle.manifest.kv_layers
    caches = graphs[:1] if pair.way == "shared" else graphs
    kv_bytes = sum(kv_bytes_per_token(layers, graph.kv_dtype) for graph in caches)
    kv_bytes *= workload.context_tokens * most
    needed = variants.needed_bytes((pair.prefill.variant, pair.decode.variant), most)
    return needed + kv_bytes


def _bundles(
    model: ModelConfig,
    plugins: Plugins,
    settings: TuneSettings,
    dialects: tuple[str, ...],
    report: Report,
) -> tuple[list[Bundle], list[Skipped]]:
    """The model's own bundle first, then those of other precisions that were asked for."""

    def made(wanted: ModelConfig) -> Bundle:
        root = resolve_source(
            wanted.source,
            precision=wanted.precision,
            context_tokens=wanted.context_tokens,
            dialects=dialects,
            plugins=plugins,
            progress=report,
            options=export_options(wanted),
        )
        return open_resolved(root)

    own = made(model)
    held = {graph.quantisation.precision for graph in own.manifest.graphs}
    others = [precision for precision in settings.precisions if precision not in held]
    if _is_finished(model):
        reason = (
            f"{own.root} holds {own.manifest.precision}; name its source model to export others"
        )
        return [own], [Skipped(precision, reason) for precision in others]
    bundles = [own, *(made(_with_precision(model, precision)) for precision in others)]
    rest = [p for p in ("fp32", "int8", "int4") if p not in held and p not in others]
    reason = "not asked for; --precisions measures it, and exports it first where it must"
    return bundles, [Skipped(precision, reason) for precision in rest]


def _with_precision(model: ModelConfig, precision: str) -> ModelConfig:
    strokes = {
        name: getattr(model, name).model_copy(update={"precision": None})
        for name in ("prefill", "decode")
    }
    return model.model_copy(update={"precision": precision, **strokes})


def _is_finished(model: ModelConfig) -> bool:
    located = locate(model.source)
    return isinstance(located, Path) and (is_bundle(located) or is_foreign(located))


def _check_context(bundle: Bundle, model: ModelConfig, workload: Workload) -> None:
    most = model.context_tokens or bundle.manifest.context_tokens
    if workload.context_tokens > most:
        raise ConfigError(
            [
                f"a prompt of {workload.prompt_tokens} tokens and an answer of "
                f"{workload.answer_tokens} are more than the context of {model.name!r}, {most}; "
                f"give --prompt-tokens and --answer-tokens that fit"
            ]
        )
