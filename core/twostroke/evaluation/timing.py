"""How long a decode step takes, here and now."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from twostroke.backends.choose import Opened, open_backend
from twostroke.backends.discovery import Plugins
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import GraphFact
from twostroke.engine.build import open_runner
from twostroke.engine.decode_step import decode_step
from twostroke.engine.runner import Runner
from twostroke.model.dialects import choose_dialect
from twostroke.types import Stroke, TokenId

NUM_TIMED = 32  # decode steps whose median is told
_UNTIMED = 2  # the first ones touch memory for the first time
_PROMPT_TOKENS = 64


def decode_ms(bundle: Bundle, plugins: Plugins, backend: str = "cpu") -> float | None:
    """One step of one sequence behind a short prompt, median; None where none fits the context.

    Raises:
        BackendError, BundleError: the graphs cannot be run here.
    """
    context_tokens = min(_PROMPT_TOKENS + NUM_TIMED, bundle.manifest.context_tokens)
    opened = open_backend(plugins, backend)
    try:
        graphs = chosen_graphs(bundle, opened)
        runner = open_runner(
            bundle,
            opened.backend,
            opened.backend,
            num_rows=1,
            context_tokens=context_tokens,
            dialects={stroke: graph.dialect for stroke, graph in graphs.items()},
        )
        try:
            prompt = [0] * max(1, context_tokens - NUM_TIMED)
            runner.prefill(0, 0, prompt, is_last=True)
            return median_ms(timed_steps(runner, 0, len(prompt), context_tokens))
        finally:
            runner.close()
    finally:
        opened.backend.close()


def chosen_graphs(bundle: Bundle, opened: Opened) -> dict[Stroke, GraphFact]:
    """The graphs that a server would run on this backend.

    Raises:
        PlacementError: the bundle lacks the dialect that the backend wants.
    """
    found = {}
    for stroke in Stroke:
        dialect = choose_dialect(bundle, stroke, None, opened.backend.name, opened.dialect)
        graph = bundle.manifest.graph(stroke, dialect)
        if graph is None:
            raise AssertionError("unreachable: the bundle holds what was chosen")
        found[stroke] = graph
    return found


def timed_steps(
    runner: Runner, token_id: TokenId, past_tokens: int, context_tokens: int
) -> list[float]:
    """Milliseconds of each decode step that follows `past_tokens` in row 0; mutates the row."""
    timings_ms = []
    for position in range(past_tokens, min(past_tokens + NUM_TIMED, context_tokens - 1)):
        begun_s = time.perf_counter()
        decode_step(runner, 0, [token_id], [position])
        timings_ms.append((time.perf_counter() - begun_s) * 1000)
    return timings_ms


def median_ms(timings_ms: Sequence[float]) -> float | None:
    """The median of the steady steps; None where there are none at all."""
    steady = timings_ms[_UNTIMED:] or timings_ms
    return statistics.median(steady) if steady else None
