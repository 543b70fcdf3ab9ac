"""The proof of placement: where ONNX Runtime really put each node.

`get_providers()` does not tell: a session whose CUDA libraries are missing, or whose provider
claims nothing of the graph, runs on the CPU without an error. The assignment of each node, which
the runtime records when asked to, does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from twostroke.backends.protocol import Placement
from twostroke.errors import PlacementError

CPU_PROVIDER = "CPUExecutionProvider"
RECORD_KEY = "session.record_ep_graph_assignment_info"
"""The session setting that makes the runtime keep the assignment."""

# Shape and index arithmetic of a few numbers. ONNX Runtime keeps it on the CPU on purpose,
# because its results steer the host.
_GLUE = frozenset(
    {
        *("Constant", "ConstantOfShape", "Identity", "Range", "Shape", "Size", "Cast"),
        *("Concat", "Expand", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"),
        *("Add", "Div", "Mod", "Mul", "Neg", "Sub", "Max", "Min"),
        *("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Where"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("MemcpyFromHost", "MemcpyToHost"),
    }
)
_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)
_HEAVY = re.compile(r".*(MatMul|Gemm|Attention|MoE|Conv).*")


def is_heavy(op_type: str) -> bool:
    """True for operators that hold the weights or read the cache."""
    return _HEAVY.fullmatch(op_type) is not None


def read_placement(session: Any, requested: str) -> Placement:
    """Counts the nodes of an `InferenceSession` by provider.

    `session` was made with RECORD_KEY set to "1".
    """
    nodes = [
        (subgraph.ep_name, node)
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
    ]
    placement = count_placement(((name, node.op_type) for name, node in nodes), requested)
    brought = Counter(node.domain for _, node in nodes if node.domain not in _DOMAINS)
    return replace(placement, brought=dict(brought.most_common()))


def runs_as_one(session: Any) -> bool:
    """Whether more than half of a graph is compiled to one step, which nothing can interrupt.

    `session` as for `read_placement`.
    """
    sizes = [len(part.get_nodes()) for part in session.get_provider_graph_assignment_info()]
    return max(sizes, default=0) > max(1, sum(sizes) // 2)


def count_placement(assigned: Iterable[tuple[str, str]], requested: str) -> Placement:
    """A placement from pairs of provider and operator, one for each node."""
    nodes: Counter[str] = Counter()
    strays: Counter[str] = Counter()
    for provider, op_type in assigned:
        nodes[provider] += 1
        if provider != requested:
            strays[op_type] += 1
    return Placement(requested, dict(nodes.most_common()), dict(strays.most_common()))


def prove_placement(placement: Placement, graph: str, backend: str, advice: str) -> None:
    """Refuses a session that does not run where it was asked to.

    Every node must be on the requested provider; only shape and index arithmetic may be on the
    CPU's. `backend` is the name in the YAML, `advice` the sentence that ends the message: what to
    do about it.

    Raises:
        PlacementError: says which operators run where.
    """
    astray = {op: count for op, count in placement.strays.items() if op not in _GLUE}
    others = [name for name in placement.nodes if name not in (placement.requested, CPU_PROVIDER)]
    if placement.nodes.get(placement.requested) and not astray and not others:
        return
    heavy_first = sorted(astray.items(), key=lambda item: (not is_heavy(item[0]), -item[1]))
    listed = ", ".join(f"{count} {op}" for op, count in heavy_first[:4])
    where = placement.sentence() or "no node anywhere"
    raise PlacementError(
        f"{graph} was asked for {placement.requested}, but runs with {where}"
        f"{f' (astray: {listed})' if listed else ''}. {advice}",
        backend=backend,
    )
