"""Rewrites a lowered fused graph into the standard dialect: ONNX's own operators, nothing else.

Runtimes that know no contrib operators (OpenVINO, TensorRT, drivers of NPUs) take such a graph
whole. It reads the same bytes of the data file as the fused graph that it was made from. What it
takes and gives is another contract: see `twostroke.bundle.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from twostroke.bundle import contract
from twostroke.errors import ExportError
from twostroke_export.passes.standard.activations import plain_gelu, plain_quick_gelu
from twostroke_export.passes.standard.attention import plain_attention
from twostroke_export.passes.standard.experts import plain_experts, plain_quantised_experts
from twostroke_export.passes.standard.norms import (
    plain_rms_norm,
    plain_skip_norm,
    plain_skip_rms_norm,
)
from twostroke_export.passes.standard.plain_ops import PlainOps
from twostroke_export.passes.standard.products import (
    plain_fused_product,
    plain_quantised_gather,
    plain_quantised_product,
)
from twostroke_export.passes.standard.rotation import plain_rotary_embedding
from twostroke_export.passes.standard.unpack import unpack_pairs
from twostroke_export.weights import WeightFile

OPSET = 21  # the first whose DequantizeLinear has blocks; what a runtime lags behind, it lacks
_IR_VERSION = 10  # of that opset
_MICROSOFT = "com.microsoft"
Rewrite = Callable[[PlainOps, ir.Node], Sequence[ir.Value | None]]
REWRITES: Mapping[tuple[str, str], Rewrite] = {
    (_MICROSOFT, "GroupQueryAttention"): plain_attention,
    ("", "SimplifiedLayerNormalization"): plain_rms_norm,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): plain_skip_rms_norm,
    (_MICROSOFT, "SkipLayerNormalization"): plain_skip_norm,
    (_MICROSOFT, "RotaryEmbedding"): plain_rotary_embedding,
    (_MICROSOFT, "QuickGelu"): plain_quick_gelu,
    (_MICROSOFT, "Gelu"): plain_gelu,
    (_MICROSOFT, "BiasGelu"): plain_gelu,
    (_MICROSOFT, "FastGelu"): plain_gelu,
    (_MICROSOFT, "FusedMatMul"): plain_fused_product,
    (_MICROSOFT, "MatMulNBits"): plain_quantised_product,
    (_MICROSOFT, "GatherBlockQuantized"): plain_quantised_gather,
    (_MICROSOFT, "MoE"): plain_experts,
    (_MICROSOFT, "QMoE"): plain_quantised_experts,
}


def standardise(model: ir.Model, weights: WeightFile) -> None:
    """Mutates a graph whose weights lie in `weights` into the standard dialect.

    Raises:
        ExportError: an operator has no form in plain operators.
    """
    graph = model.graph
    ops = PlainOps(graph, weights)
    unpack_pairs(model, weights)
    for node in list(graph):
        rewrite = REWRITES.get((node.domain, node.op_type))
        if rewrite is not None:
            ops.place = node
            _replace(graph, node, rewrite(ops, node))
    common.RemoveUnusedNodesPass()(model)
    for value in list(graph.inputs):
        is_fused_only = value.name in (contract.SEQLENS_K, contract.TOTAL_SEQUENCE_LENGTH)
        if not value.uses() and (is_fused_only or value.name == contract.POSITION_IDS):
            graph.inputs.remove(value)
    _name_dimensions(graph)
    common.RemoveUnusedOpsetsPass()(model)
    graph.opset_imports.clear()
    graph.opset_imports[""] = OPSET
    model.ir_version = _IR_VERSION
    check_standard(graph)


def _replace(graph: ir.Graph, node: ir.Node, values: Sequence[ir.Value | None]) -> None:
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None:
            new.shape, new.type, new.name = old.shape, old.type, old.name
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _name_dimensions(graph: ir.Graph) -> None:
    for value in (*graph.inputs, *graph.outputs):
        name = value.name or ""
        if value.shape is not None and name.startswith(("past_key_values.", "present.")):
            length = "past" if name.startswith("past") else "total"
            value.shape = ir.Shape(["batch", value.shape[1], length, value.shape[3]])


def check_standard(graph: ir.Graph) -> None:
    """Refuses an operator that is not ONNX's own, or younger than `OPSET`.

    Raises:
        ExportError: naming the operator.
    """
    for node in graph.all_nodes():
        if node.domain or not onnx.defs.has(node.op_type, OPSET, ""):
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise ExportError(
                f"The operator {name} of this model has no form in the standard dialect; export "
                f"it with --dialect fused."
            )
