"""What `tune` found, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from twostroke.bundle import Bundle
from twostroke.tune.pairs import Pair
from twostroke.tune.run import Standing, Tuned
from twostroke.tune.settings import Workload
from twostroke.tune.variants import Skipped

_NUM_LEFT = 3  # columns of text; figures are set to the right
_BUSY_SHARE = 0.5  # of the processors, beside our own threads


def table(tuned: Tuned) -> Iterator[str]:
    """Lines: a header, one for each pair, best first, and what the marks mean."""
    workload = tuned.workload
    rows = [_header(workload), *(_cells(each, tuned) for each in tuned.standings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield workload.sentence()
    for row in rows:
        cells = [
            cell.ljust(width) if number < _NUM_LEFT else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield "* what the configuration says; > what is best for these requests"
    if any(quality(pair.pair) is not None for pair in tuned.standings):
        yield "KL, same token: divergence from the source model, and how often it agrees"
    if tuned.load is not None and tuned.load > tuned.num_processors * (1 + _BUSY_SHARE):
        yield (
            f"note: the machine was busy (load {tuned.load:.1f} on {tuned.num_processors} "
            f"processors): trust the ratios, not the milliseconds"
        )
    yield from verdict(tuned)


def verdict(tuned: Tuned) -> Iterator[str]:
    """One sentence on what is best, and one on what a freer choice would bring."""
    chosen, current = tuned.chosen, tuned.current
    if chosen is None:
        yield "nothing that is allowed could be measured; --allow-precision-change allows more"
        return
    if current is None:
        yield f"best: {_named(chosen.pair)}"
    elif chosen is current:
        yield f"the configuration is best as it is: {_named(chosen.pair)}"
    else:
        gain = current.pair.score_s(tuned.workload) / chosen.pair.score_s(tuned.workload)
        yield f"best: {_named(chosen.pair)}, {gain:.2f} times as fast as the configuration"
    first = tuned.standings[0]
    if first.pair.precisions != chosen.pair.precisions:
        yield (
            f"{_named(first.pair)} would be faster still, in another precision: see the quality, "
            f"then --allow-precision-change"
        )


def skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """What was left out, a line each."""
    for each in skipped:
        yield f"not measured: {each.what}: {each.reason.rstrip('.')}"


def as_json(tuned: Tuned) -> dict[str, Any]:
    """Every figure, for programs."""
    workload = tuned.workload
    return {
        "prompt_tokens": workload.prompt_tokens,
        "answer_tokens": workload.answer_tokens,
        "streams": list(workload.streams),
        "load": tuned.load,
        "num_processors": tuned.num_processors,
        "pairs": [_figures(each, tuned) for each in tuned.standings],
        "skipped": [{"what": each.what, "reason": each.reason} for each in tuned.skipped],
    }


def quality(pair: Pair) -> tuple[float, float] | None:
    """KL divergence and agreement with the source: of the worse of both bundles, where known."""
    known = [_measured(each.variant.bundle) for each in (pair.prefill, pair.decode)]
    found = [each for each in known if each is not None]
    return max(found) if len(found) == len(known) else None


def _measured(bundle: Bundle) -> tuple[float, float] | None:
    manifest = bundle.manifest
    for each in (*reversed(manifest.evaluations), manifest.verification):
        if each is not None and each.mean_kl is not None and each.top1_agreement is not None:
            return each.mean_kl, each.top1_agreement
    return None


def _named(pair: Pair) -> str:
    prefill, decode = pair.prefill.variant.name, pair.decode.variant.name
    return (
        f"both on {prefill}" if prefill == decode else f"prefill on {prefill}, decode on {decode}"
    )


def _header(workload: Workload) -> tuple[str, ...]:
    rates = [f"tok/s at {streams}" for streams in workload.streams]
    answers = [f"s an answer at {streams}" for streams in workload.streams]
    return (
        "",
        "prefill",
        "decode",
        "TTFT ms",
        *rates,
        *answers,
        "hand-over",
        "memory",
        "KL",
        "same token",
        "spread",
    )


def _cells(standing: Standing, tuned: Tuned) -> tuple[str, ...]:
    pair, workload = standing.pair, tuned.workload
    mark = ("*" if pair.is_current else "") + (">" if standing is tuned.chosen else "")
    found = quality(pair)
    moved = "shared" if pair.way == "shared" else f"{pair.hand_over_s * 1e3:.1f} ms"
    return (
        mark,
        pair.prefill.variant.name,
        pair.decode.variant.name,
        f"{pair.ttft_s * 1e3:.0f}",
        *(f"{streams / pair.step_s[streams]:.1f}" for streams in workload.streams),
        *(f"{pair.answer_s(n, workload.answer_tokens):.2f}" for n in workload.streams),
        moved,
        f"{standing.memory_bytes / 1e6:.0f} MB",
        "-" if found is None else f"{found[0]:.3f}",
        "-" if found is None else f"{found[1]:.1%}",
        f"{pair.spread:.0%}",
    )


def _figures(standing: Standing, tuned: Tuned) -> dict[str, Any]:
    pair, found = standing.pair, quality(standing.pair)
    places = {
        each.variant.stroke.value: {
            "backend": each.variant.backend,
            "device": each.variant.device.name,
            "dialect": each.variant.graph.dialect,
            "precision": each.variant.precision,
            "options": dict(each.variant.options),
            "nodes": dict(each.graph.session.placement.nodes),
        }
        for each in (pair.prefill, pair.decode)
    }
    return {
        **places,
        "is_current": pair.is_current,
        "is_chosen": standing is tuned.chosen,
        "ttft_ms": round(pair.ttft_s * 1e3, 3),
        "hand_over_ms": round(pair.hand_over_s * 1e3, 3),
        "hand_over_way": pair.way,
        "step_ms": {str(n): round(s * 1e3, 3) for n, s in pair.step_s.items()},
        "answer_s": {
            str(n): round(pair.answer_s(n, tuned.workload.answer_tokens), 4)
            for n in tuned.workload.streams
        },
        "memory_bytes": standing.memory_bytes,
        "mean_kl": None if found is None else found[0],
        "top1_agreement": None if found is None else found[1],
        "spread": round(pair.spread, 3),
    }
