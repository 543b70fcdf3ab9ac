"""What fraction of the possible the runs of a sequence reached.

A run must read its weights once, and the cache of each row; it must compute two operations for
each parameter and token, and attention. Over the time that the runs took, these are rates, and over
what the device can do at most, fractions (Williams, Waterman and Patterson, "Roofline", CACM 52(4),
2009). The larger fraction names the bound. The formulas are those of `twostroke plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twostroke.backends.capabilities import PacksWeights
from twostroke.backends.protocol import Backend
from twostroke.bundle.graph_header import read_header
from twostroke.bundle.manifest import GraphFact, KVLayer, Manifest
from twostroke.errors import BundleError
from twostroke.life.bundle_weights import weigh_graph
from twostroke.life.chunks import PromptChunks
from twostroke.life.limits import DeviceLimits, known_limits
from twostroke.life.memory import kv_bytes_per_token
from twostroke.life.operations import run_ops
from twostroke.life.steps import DecodeSteps
from twostroke.life.weights import Weights
from twostroke.timings import Roofline, StrokeRoofline
from twostroke.types import Stroke

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """What runs of one graph must read and compute, and what its device can do."""

    weights: Weights
    layers: tuple[KVLayer, ...]
    kv_dtype: str
    num_heads: int
    precision: str
    limits: DeviceLimits

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the cache that this graph reads."""
        return kv_bytes_per_token(self.layers, self.kv_dtype)

    def prefill(self, chunks: PromptChunks) -> StrokeRoofline | None:
        """Of the chunks of a prompt; None where nothing was read, or in no time."""
        read_bytes = ops = 0.0
        for span in chunks.entries:
            size = span.num_tokens / span.num_chunks
            # Of `num_chunks` chunks of `size` tokens each reads what those before it have written.
            past = span.num_chunks * (span.start + size * (span.num_chunks - 1) / 2)
            read_bytes += span.num_chunks * self.weights.read_bytes(round(size))
            read_bytes += past * self.kv_bytes_per_token
            ops += self._ops(span.start, span.num_tokens)
            ops += 2.0 * self.weights.num_head * (span.num_chunks - 1)  # logits of each chunk
        return self._against(chunks.busy_s, read_bytes, read_bytes, ops)

    def decode(self, steps: DecodeSteps, num_drafted_tokens: int = 0) -> StrokeRoofline | None:
        """Of decode steps; None where there were none, or in no time.

        Drafted tokens are computed beside those that steps make, behind as many others on average.
        """
        read_bytes = float(steps.batch_tokens * self.kv_bytes_per_token)
        own_bytes = float(steps.own_tokens * self.kv_bytes_per_token)
        num_rows = 0
        for batch_size, num_steps in steps.batch_sizes.items():
            weights_bytes = num_steps * self.weights.read_bytes(batch_size)
            read_bytes += weights_bytes
            own_bytes += weights_bytes / batch_size
            num_rows += num_steps * batch_size
        first, second = self._ops(0, 1), self._ops(1, 1)  # the cache makes the difference
        ops = num_rows * first + steps.batch_tokens * (second - first)
        if num_drafted_tokens:
            mean_tokens = steps.own_tokens / max(1, len(steps))
            ops += num_drafted_tokens * (first + mean_tokens * (second - first))
        return self._against(steps.busy_s, read_bytes, own_bytes, ops)

    def _ops(self, start: int, num_tokens: int) -> float:
        return run_ops(
            self.weights,
            self.layers,
            num_heads=self.num_heads,
            start=start,
            num_tokens=num_tokens,
        )

    def _against(
        self, busy_s: float, read_bytes: float, own_bytes: float, ops: float
    ) -> StrokeRoofline | None:
        if busy_s <= 0:
            return None
        bandwidth = self.limits.read_bytes_per_s
        peak = self.limits.ops_per_s(self.precision.partition("/")[0])
        of_bandwidth = read_bytes / busy_s / bandwidth if bandwidth else None
        of_peak = ops / busy_s / peak if peak else None
        bound_by = None
        if of_bandwidth is not None and of_peak is not None:
            bound_by = "bandwidth" if of_bandwidth >= of_peak else "compute"
        return StrokeRoofline(
            read_bytes,
            own_bytes,
            ops,
            read_bytes / busy_s,
            ops / busy_s,
            of_bandwidth,
            of_peak,
            bound_by,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The costs of an engine's graphs by stroke; empty where they are not known: `reason`."""

    costs: Mapping[Stroke, GraphCosts]
    reason: str | None = None

    def roofline(
        self, chunks: PromptChunks, steps: DecodeSteps, num_drafted_tokens: int = 0
    ) -> Roofline:
        """That of one sequence."""
        if not self.costs:
            return Roofline(reason=self.reason)
        return Roofline(
            self.costs[Stroke.PREFILL].prefill(chunks),
            self.costs[Stroke.DECODE].decode(steps, num_drafted_tokens),
            self.reason,
        )


def has_costs(graph: Path) -> bool:
    """Whether a graph tells what it reads and computes: an ONNX file does."""
    try:
        read_header(graph)
    except BundleError:
        return False
    return True


def engine_bounds(
    manifest: Manifest,
    graphs: Mapping[Stroke, tuple[GraphFact, Path]],
    backends: Mapping[Stroke, Backend],
) -> Bounds:
    """The bounds of an engine. Reads what the graphs declare; measures nothing.

    Where a graph is no ONNX file the bounds hold no costs.
    """
    costs = {}
    try:
        for stroke, (fact, path) in graphs.items():
            weights = weigh_graph(
                path,
                vocab_size=manifest.architecture.vocab_size,
                packs=isinstance(backends[stroke], PacksWeights),
            )
            costs[stroke] = GraphCosts(
                weights,
                manifest.kv_layers,
                fact.kv_dtype,
                manifest.architecture.num_heads,
                fact.quantisation.precision,
                known_limits(backends[stroke]),
            )
    except BundleError as error:
        log.debug("no roofline: %s", error)
        return Bounds({}, "what the graphs read and compute is not known: they are no ONNX files")
    return Bounds(costs, _doubts(costs, backends))


def _doubts(costs: Mapping[Stroke, GraphCosts], backends: Mapping[Stroke, Backend]) -> str | None:
    """Why fractions are missing or less certain."""
    reasons = []
    for stroke, cost in costs.items():
        device, limits = backends[stroke].device, cost.limits
        is_known = limits.read_bytes_per_s and limits.ops_per_s(cost.precision)
        if limits.was_busy:
            reasons.append(f"the limits of {device.name} were measured while the machine was busy")
        elif not is_known and device.kind == "cpu":
            reasons.append(
                f"what {device.name} can do was not measured yet: `twostroke doctor` does, once"
            )
        elif not is_known:
            reasons.append(f"the backend {backends[stroke].name} does not tell all its limits")
    return "; ".join(dict.fromkeys(reasons)) or None
