"""What a bundle does on an open backend: prefill and decode, and how near that is to the memory's
bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from twostroke.backends.capabilities import Reports, TellsFreeMemory
from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.engine.build import open_runner
from twostroke.engine.decode_step import decode_step
from twostroke.engine.runner import Runner
from twostroke.life.bundle_weights import weigh_graph
from twostroke.life.memory import kv_bytes_per_token
from twostroke.types import Stroke

NUM_STEPS = 48
_NUM_WARM = 6  # the first runs allocate, and record what is replayed


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """Steps of `num_rows` sequences, each `past_tokens` long when they begin; medians.

    `bandwidth_fraction` is of what the device's memory could at most, by its clock and width; None
    where that is not known.
    """

    num_rows: int
    past_tokens: int
    step_ms: float
    tokens_per_s: float
    read_bytes: int
    bandwidth_fraction: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one bundle with one set of options."""

    bundle: str
    options: dict[str, Any]
    prefill_tokens_per_s: dict[int, float]
    decode: list[DecodeFigures]
    nodes: dict[str, int]
    details: dict[str, Any]
    load_s: float
    taken_bytes: int | None  # of the device, by what opening the sessions took

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def measure(
    bundle: Bundle,
    backend: Backend,
    options: Mapping[str, Any],
    *,
    prompts: tuple[int, ...] = (512, 2048),
    rows: tuple[int, ...] = (1, 4, 8),
    past: tuple[int, ...] = (128, 1024),
    clock: Callable[[], float] = time.perf_counter,
) -> Figures:
    """Reads prompts, then decodes. What does not fit the bundle's context is left out.

    Raises:
        TwostrokeError: the backend refuses the bundle, or a run fails.
    """
    free_before = _free_bytes(backend)
    begun = clock()
    context = min(bundle.manifest.context_tokens, max((*prompts, *past)) + NUM_STEPS + 2)
    runner = open_runner(bundle, backend, backend, num_rows=max(rows), context_tokens=context)
    load_s = clock() - begun
    free = _free_bytes(backend)
    taken = None if free_before is None or free is None else free_before - free
    try:
        prefill = {
            count: count / _prefill_s(runner, count, clock) for count in prompts if count < context
        }
        decode = [
            _decode(bundle, backend, runner, num_rows, tokens, clock)
            for tokens in past
            if tokens + NUM_STEPS < context
            for num_rows in rows
        ]
        placement = runner.placements[Stroke.DECODE]
        details = dict(backend.report()) if isinstance(backend, Reports) else {}
        return Figures(
            bundle.root.name,
            dict(options),
            prefill,
            decode,
            dict(placement.nodes),
            details,
            load_s,
            taken,
        )
    finally:
        runner.close()


def _free_bytes(backend: Backend) -> int | None:
    return backend.free_memory().num_bytes if isinstance(backend, TellsFreeMemory) else None


def _ids(count: int) -> list[int]:
    return [(7 * position + 3) % 200 + 4 for position in range(count)]


def _prefill_s(runner: Runner, count: int, clock: Callable[[], float]) -> float:
    """The median time of reading `count` tokens in one run."""
    timings = []
    for _ in range(4):
        begun = clock()
        runner.prefill(0, 0, _ids(count), is_last=True)
        timings.append(clock() - begun)
    return max(statistics.median(timings[1:]), 1e-9)


def _decode(
    bundle: Bundle,
    backend: Backend,
    runner: Runner,
    num_rows: int,
    past_tokens: int,
    clock: Callable[[], float],
) -> DecodeFigures:
    for row in range(num_rows):
        runner.prefill(row, 0, _ids(past_tokens), is_last=True)
    timings = []
    for step in range(NUM_STEPS):
        lengths = [past_tokens + step] * num_rows
        begun = clock()
        decode_step(runner, 0, [5] * num_rows, lengths)
        timings.append(clock() - begun)
    step_s = max(statistics.median(timings[_NUM_WARM:]), 1e-9)
    read = read_bytes(bundle, num_rows, past_tokens + NUM_STEPS // 2)
    bandwidth = backend.device.bandwidth_bytes_per_s
    fraction = None if bandwidth is None else read / step_s / bandwidth
    return DecodeFigures(num_rows, past_tokens, step_s * 1e3, num_rows / step_s, read, fraction)


def read_bytes(bundle: Bundle, num_rows: int, past_tokens: int) -> int:
    """What a step must read at least: each weight once, and each row's keys and values."""
    vocab_size = bundle.manifest.architecture.vocab_size
    weights = weigh_graph(bundle.graph(Stroke.DECODE), vocab_size=vocab_size, packs=False)
    fact = bundle.manifest.graph(Stroke.DECODE)
    assert fact is not None  # or there is no graph to weigh
    kv_bytes = kv_bytes_per_token(bundle.manifest.kv_layers, fact.kv_dtype)
    return int(weights.read_bytes(num_rows)) + num_rows * past_tokens * kv_bytes
