"""Folds constants and removes what moves no number: views that cancel, unused nodes and inputs."""

from __future__ import annotations

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes import common

from twostroke.bundle import contract
from twostroke_export.passes.rejoin import rejoin
from twostroke_export.passes.sink_transpose import sink_transposes
from twostroke_export.passes.static_reshape import fix_reshapes
from twostroke_export.passes.unflatten import unflatten

# Weights stay as they are (their transposes are lowered later); shape arithmetic is folded.
_FOLD_LIMIT_BYTES = 1024


def simplify(model: ir.Model) -> None:
    """Mutates the graph: constants folded, equal nodes merged, cancelling views removed."""
    common.InlinePass()(model)
    onnxscript.optimizer.fold_constants(
        model,
        input_size_limit=_FOLD_LIMIT_BYTES,
        output_size_limit=_FOLD_LIMIT_BYTES,
        should_fold=_should_fold,
    )
    ir.passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.CommonSubexpressionEliminationPass(),
    )(model)
    fix_reshapes(model.graph)
    unflatten(model.graph)
    rejoin(model.graph)
    sink_transposes(model.graph)
    remove_cancelling_views(model.graph)
    ir.passes.Sequential(
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]  # onnx_ir leaves it bare
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model)
    drop_unused_position_ids(model.graph)
    name_free_dimensions(model.graph)


def _should_fold(node: ir.Node) -> bool | None:
    """False for transposed weights, which the folder would copy whatever the limit."""
    source = node.inputs[0] if node.inputs else None
    is_weight = source is not None and source.is_initializer()
    return False if node.op_type == "Transpose" and is_weight else None


def remove_cancelling_views(graph: ir.Graph) -> None:
    """Removes transposes and reshapes that undo one another. Mutates the graph."""
    changed = True
    while changed:
        changed = False
        for node in list(graph):
            source = _cancels(node)
            if source is None or node.outputs[0] in graph.outputs:
                continue
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            graph.remove(node, safe=True)
            changed = True
        common.RemoveUnusedNodesPass()(ir.Model(graph, ir_version=10))


def _cancels(node: ir.Node) -> ir.Value | None:
    """The earlier value that this view equals, if it equals one."""
    source = node.inputs[0] if node.inputs else None
    if source is None:
        return None
    keeps_order = node.op_type in ("Reshape", "Expand") or _is_forward_slice(node)
    if keeps_order and _same_shape(node.outputs[0], source):
        return source
    if node.op_type == "Reshape":
        below = source.producer()
        if below is not None and below.op_type == "Reshape":
            origin = below.inputs[0]
            if origin is not None and _same_shape(node.outputs[0], origin):
                return origin
    if node.op_type == "Transpose":
        below = source.producer()
        if below is not None and below.op_type == "Transpose":
            first = below.attributes["perm"].as_ints()
            second = node.attributes["perm"].as_ints()
            if [first[axis] for axis in second] == list(range(len(first))):
                return below.inputs[0]
    return None


def _is_forward_slice(node: ir.Node) -> bool:
    """A slice without steps other than 1; one that keeps every size keeps everything."""
    if node.op_type != "Slice":
        return False
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is None:
        return True
    return steps.const_value is not None and bool((steps.const_value.numpy() == 1).all())


def _same_shape(left: ir.Value, right: ir.Value) -> bool:
    """True where every dimension is known to be equal."""
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        return False
    pairs = zip(left.shape, right.shape, strict=True)
    return all(a == b and not (isinstance(a, ir.SymbolicDim) and a.value is None) for a, b in pairs)


def drop_unused_position_ids(graph: ir.Graph) -> None:
    """Without a rotary outside attention nothing reads the positions: drops the input."""
    for value in list(graph.inputs):
        if value.name == contract.POSITION_IDS and not value.uses():
            graph.inputs.remove(value)


def name_free_dimensions(graph: ir.Graph) -> None:
    """Gives the declared inputs and outputs the contract's dimension names."""
    for value in (*graph.inputs, *graph.outputs):
        name = value.name or ""
        if value.shape is None or not name:
            continue
        dims = list(value.shape)
        if name.startswith(("past_key_values.", "present.")):
            value.shape = ir.Shape(["batch", dims[1], "capacity", dims[3]])
        elif dims:
            rest = ["sequence" if isinstance(dim, ir.SymbolicDim) else dim for dim in dims[1:]]
            value.shape = ir.Shape(["batch", *rest])
