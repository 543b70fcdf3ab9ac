"""Residual additions fused with the norm behind them, and the same numbers as before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from twostroke_export.passes.skip_norm import fuse_skip_norm

FLOAT = ir.TensorType(ir.DataType.FLOAT)
SHAPE = ("batch", "sequence", 32)


def build(*, broadcast: bool = False) -> ir.Model:
    """total = a + b; first = norm(total); result = exp(total) + first."""
    a = ir.Value(name="a", shape=ir.Shape(SHAPE), type=FLOAT)
    b = ir.Value(name="b", shape=ir.Shape((32,) if broadcast else SHAPE), type=FLOAT)
    weight = ir.Value(
        name="w", const_value=ir.tensor(np.linspace(0, 2, 32, dtype=np.float32), name="w")
    )
    add = ir.node("Add", [a, b])
    norm = ir.node(
        "SimplifiedLayerNormalization",
        [add.outputs[0], weight],
        attributes={"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    )
    other = ir.node("Exp", [add.outputs[0]])
    last = ir.node("Add", [other.outputs[0], norm.outputs[0]])
    for number, node in enumerate((add, norm, other, last)):
        output = node.outputs[0]
        output.name, output.shape, output.type = f"v{number}", ir.Shape(SHAPE), FLOAT
    graph = ir.Graph(
        [a, b],
        [last.outputs[0]],
        nodes=[add, other, norm, last],  # the sum is read before the norm
        initializers=[weight],
        opset_imports={"": 23},
    )
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> np.ndarray:
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((2, 3, 32)).astype(np.float32) for name in "ab"}
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_fuses_and_gives_the_same_numbers():
    model, plain = build(), run(build())
    assert fuse_skip_norm(model.graph) == 1
    assert [node.op_type for node in model.graph] == [
        "SkipSimplifiedLayerNormalization",
        "Exp",
        "Add",
    ]
    assert np.allclose(run(model), plain, atol=1e-6)


def test_a_broadcast_addition_is_no_residual():
    model = build(broadcast=True)
    assert fuse_skip_norm(model.graph) == 0
    assert len(model.graph) == 4


def test_a_weight_that_is_computed_is_left_alone():
    model = build()
    norm = next(node for node in model.graph if node.op_type.startswith("Simplified"))
    computed = ir.node("Abs", [norm.inputs[1]])
    computed.outputs[0].name = "computed"
    model.graph.insert_before(model.graph[0], computed)
    norm.replace_input_with(1, computed.outputs[0])
    assert fuse_skip_norm(model.graph) == 0
