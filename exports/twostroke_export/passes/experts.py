"""Lowers the experts of a layer to `com.microsoft::MoE` in floats and to `QMoE` in 8 or 4 bits.

Both operators hold an expert's matrices as [experts, out, in] with gate and up in alternating rows,
and read only those of the experts that a token chose. The model keeps its own routing: its weights
are scattered over the experts, and the operator finds them to be the k largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from twostroke_export.passes.expert_node import MATRICES, ExpertsNode, find_experts
from twostroke_export.passes.expert_weights import ExpertWeights, fitting_blocks
from twostroke_export.passes.linears import constant, replace
from twostroke_export.precision import Lowering
from twostroke_export.quantise import Blocks
from twostroke_export.weights import WeightFile

_DOMAIN = "com.microsoft"
# The weight of what was not chosen, where a logarithm is taken of it: less than any that counts,
# and not 0, so that a token whose weights are all 0 gives no NaN.
_UNCHOSEN = 1e-30


def lower_experts(graph: ir.Graph, lowering: Lowering, weights: WeightFile) -> int:
    """Puts an operator of ONNX Runtime in the place of every `Experts` node. Mutates the graph.

    Returns how many layers had experts.
    """
    found = find_experts(graph)
    stored, nodes = ExpertWeights(graph, weights, lowering.importance), _Nodes(graph)
    for experts in found:
        blocks = fitting_blocks(experts, lowering)
        if blocks is None:
            _in_floats(experts, stored, nodes)
        else:
            _quantised(experts, blocks, lowering.accuracy_level, stored, nodes)
    if found:
        graph.opset_imports.pop(found[0].node.domain, None)
        graph.opset_imports.setdefault(_DOMAIN, 1)
    return len(found)


def _in_floats(experts: ExpertsNode, stored: ExpertWeights, nodes: _Nodes) -> None:
    """MoE shares out 1 by a softmax of its input: it gets logarithms, and the sum comes after."""
    before = experts.node
    logs = nodes.add(before, "Log", [nodes.scattered(experts, _UNCHOSEN)])
    mixed = nodes.add(
        before,
        "MoE",
        [
            *(experts.operand("states"), logs),
            *(stored.floats(experts, "gate_up"), stored.bias(experts, "gate_up")),
            *(stored.floats(experts, "down"), stored.bias(experts, "down")),
        ],
        domain=_DOMAIN,
        normalize_routing_weights=1,
        **_activation(experts),
    )
    axes = constant(nodes.graph, ir.tensor(np.array([1]), name="experts_axes"))
    total = nodes.add(before, "ReduceSum", [experts.operand("weights"), axes])  # [tokens, 1]
    replace(nodes.graph, before, ir.node("Mul", [mixed, total]))


def _quantised(
    experts: ExpertsNode,
    blocks: Blocks,
    accuracy_level: int,
    stored: ExpertWeights,
    nodes: _Nodes,
) -> None:
    """QMoE takes the weights as they are, for the choice and for the sum."""
    scattered = nodes.scattered(experts, 0.0)
    gate_up, down = (stored.quantised(experts, name, blocks) for name in MATRICES)
    attributes = {
        "expert_weight_bits": blocks.bits,
        "block_size": blocks.size,
        "accuracy_level": accuracy_level,
        **_activation(experts),
    }
    inputs = [
        *(experts.operand("states"), scattered),
        *(gate_up[0], gate_up[1], stored.bias(experts, "gate_up")),
        *(down[0], down[1], stored.bias(experts, "down")),
        *(None, None, None),  # a third matrix, which the CPU's kernel does not have
        *(gate_up[2], down[2], None),
        scattered,
    ]
    replace(nodes.graph, experts.node, ir.node("QMoE", inputs, attributes, domain=_DOMAIN))


def _activation(experts: ExpertsNode) -> dict[str, Any]:
    gate = experts.node.attributes
    return {
        "k": experts.integer("num_chosen"),
        "activation_type": "swiglu",
        "swiglu_fusion": 1,  # gate and up in alternating rows
        "activation_alpha": gate["alpha"].as_float(),
        "activation_beta": gate["beta"].as_float(),
        **({"swiglu_limit": gate["limit"].as_float()} if "limit" in gate else {}),
    }


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Adds nodes to a graph.

    unchosen: [tokens, experts] full of one weight, by the number of experts and that weight.
    """

    graph: ir.Graph
    unchosen: dict[tuple[int, float], ir.Value] = field(default_factory=dict)

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """The output of a new node."""
        node = ir.node(op_type, inputs, attributes, domain=domain)
        self.graph.insert_before(before, node)
        return node.outputs[0]

    def scattered(self, experts: ExpertsNode, unchosen: float) -> ir.Value:
        """[tokens, experts]: the weight of each expert for each token, `unchosen` elsewhere."""
        before, chosen = experts.node, experts.operand("chosen")
        num_experts = experts.integer("num_experts")
        if (num_experts, unchosen) not in self.unchosen:  # every layer sees the same tokens
            width = ir.tensor(np.array([num_experts]), name=f"num_experts_{num_experts}")
            tokens = self.add(before, "Shape", [chosen], start=0, end=1)
            shape = self.add(before, "Concat", [tokens, constant(self.graph, width)], axis=0)
            weight = ir.tensor(np.array([unchosen], np.float32))
            full = self.add(before, "ConstantOfShape", [shape], value=weight)
            self.unchosen[num_experts, unchosen] = full
        full = self.unchosen[num_experts, unchosen]
        return self.add(
            before, "ScatterElements", [full, chosen, experts.operand("weights")], axis=1
        )
