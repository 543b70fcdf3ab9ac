"""Prefill here and decode there: what a request would take, and which pair is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from twostroke.engine.handover import hand_over_way
from twostroke.life.memory import kv_bytes_per_token
from twostroke.tune.opened import OpenVariant
from twostroke.tune.rounds import StrokeTimer
from twostroke.tune.settings import Workload

COPY_BYTES_PER_S = 5e9
"""What a hand-over is taken to reach until it is measured; the finalists' are."""

LEAST_GAIN = 0.05
"""What is there stays unless another pair is better by as much: smaller differences are noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A variant for each stroke, and what their requests take.

    `ttft_s` is that of a prompt alone, `hand_over_s` the part of it that brings the cache from
    one to the other, in the `way` named. `step_s` is by streams. `is_measured`: together, not as
    the sum of both apart.
    """

    prefill: OpenVariant
    decode: OpenVariant
    way: str
    ttft_s: float
    hand_over_s: float
    step_s: dict[int, float]
    spread: float
    is_measured: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the YAML says so already."""
        return self.prefill.variant.is_current and self.decode.variant.is_current

    @property
    def is_of_current_bundle(self) -> bool:
        """Whether both graphs lie in the bundle that the YAML leads to."""
        return self.prefill.variant.is_of_own_bundle and self.decode.variant.is_of_own_bundle

    @property
    def precisions(self) -> tuple[str, str]:
        """Of prefill and of decode."""
        return self.prefill.variant.precision, self.decode.variant.precision

    @property
    def is_one_backend(self) -> bool:
        """Whether both strokes run on the same backend."""
        return self.prefill.variant.backend == self.decode.variant.backend

    def answer_s(self, streams: int, answer_tokens: int) -> float:
        """Seconds an answer takes, prompt included, where `streams` of them are made at once.

        Prompts are read one after the other and delay all: (streams * ttft + steps) / streams.
        """
        steps_s = (answer_tokens - 1) * self.step_s[streams]
        return self.ttft_s + steps_s / streams

    def score_s(self, workload: Workload) -> float:
        """The geometric mean of `answer_s` over the numbers of streams: less is better."""
        logs = [math.log(self.answer_s(n, workload.answer_tokens)) for n in workload.streams]
        return math.exp(sum(logs) / len(logs))


def make_pairs(timers: Sequence[StrokeTimer], workload: Workload) -> list[Pair]:
    """Every pair whose caches hold the same numbers, from what both took apart; best first."""
    prefills = [timer for timer in timers if timer.figures.prompt.seconds]
    decodes = [timer for timer in timers if timer.figures.steps]
    pairs = [
        _pair(one, other, workload)
        for one in prefills
        for other in decodes
        if one.opened.graph.kv_dtype == other.opened.graph.kv_dtype
    ]
    return ranked(pairs, workload)


def ranked(pairs: Sequence[Pair], workload: Workload) -> list[Pair]:
    """The quickest first."""
    return sorted(pairs, key=lambda pair: pair.score_s(workload))


def finalists(pairs: Sequence[Pair], num_best: int) -> list[Pair]:
    """The best, what the YAML says, and the best of each backend alone; each once, best first."""
    chosen = list(pairs[:num_best])
    chosen += [pair for pair in pairs if pair.is_current]
    alone: dict[str, Pair] = {}
    for pair in pairs:
        if pair.is_one_backend:
            alone.setdefault(pair.prefill.variant.backend, pair)
    chosen += alone.values()
    return [pair for pair in pairs if any(pair is each for each in chosen)]


def choose(pairs: Sequence[Pair], workload: Workload, *, may_change_precision: bool) -> Pair | None:
    """The best that is allowed; what is there where nothing is clearly better. None: no pairs."""
    current = next((pair for pair in pairs if pair.is_current), None)
    allowed = [
        pair
        for pair in pairs
        if may_change_precision or current is None or pair.precisions == current.precisions
    ]
    if not allowed:
        return current
    best = allowed[0]
    if current is not None and best is not current:
        gain = 1 - best.score_s(workload) / current.score_s(workload)
        if gain < LEAST_GAIN:
            return current
    return best


def with_measured(pair: Pair, ttft_s: float, hand_over_s: float, step_s: float) -> Pair:
    """The pair as it ran together; steps of several streams keep their ratio to those of one."""
    first = min(pair.step_s)
    ratio = step_s / pair.step_s[first] if first == 1 else 1.0
    steps = {streams: seconds * ratio for streams, seconds in pair.step_s.items()}
    return replace(pair, ttft_s=ttft_s, hand_over_s=hand_over_s, step_s=steps, is_measured=True)


def _pair(one: StrokeTimer, other: StrokeTimer, workload: Workload) -> Pair:
    way = hand_over_way(one.opened.graph, other.opened.graph)
    layers = other.opened.variant.bundle.manifest.kv_layers
    num_bytes = workload.prompt_tokens * kv_bytes_per_token(layers, other.opened.graph.kv_dtype)
    hand_over_s = 0.0 if way == "shared" else num_bytes / COPY_BYTES_PER_S
    steps = {streams: samples.median_s for streams, samples in other.figures.steps.items()}
    spreads = [one.figures.prompt.spread, *(s.spread for s in other.figures.steps.values())]
    ttft_s = one.figures.prompt.median_s + hand_over_s
    return Pair(one.opened, other.opened, way, ttft_s, hand_over_s, steps, max(spreads))
