"""SiLU written as one operator, and the same numbers as before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from twostroke_export.passes.silu import fuse_silu

FLOAT = ir.TensorType(ir.DataType.FLOAT)
SHAPE = ("batch", 8)


def build(*, other: bool = False, read_twice: bool = False) -> ir.Model:
    """y = x * sigmoid(x), or x * sigmoid(another value), or with a second reader of the sigmoid."""
    x, another = (ir.Value(name=name, shape=ir.Shape(SHAPE), type=FLOAT) for name in ("x", "z"))
    sigmoid = ir.node("Sigmoid", [another if other else x])
    product = ir.node("Mul", [sigmoid.outputs[0], x])
    last = ir.node("Add", [product.outputs[0], sigmoid.outputs[0] if read_twice else another])
    for number, node in enumerate((sigmoid, product, last)):
        output = node.outputs[0]
        output.name, output.shape, output.type = f"v{number}", ir.Shape(SHAPE), FLOAT
    graph = ir.Graph(
        [x, another],
        last.outputs,
        nodes=[sigmoid, product, last],
        opset_imports={"": 23},
    )
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> np.ndarray:
    random = np.random.default_rng(0)
    feeds = {name: 3 * random.standard_normal((4, 8)).astype(np.float32) for name in "xz"}
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_fuses_and_gives_the_same_numbers():
    model, plain = build(), run(build())
    assert fuse_silu(model.graph) == 1
    assert [node.op_type for node in model.graph] == ["QuickGelu", "Add"]
    assert np.allclose(run(model), plain, atol=1e-6)


def test_a_gate_by_another_value_is_no_silu():
    model = build(other=True)
    assert fuse_silu(model.graph) == 0
    assert len(model.graph) == 3


def test_a_sigmoid_that_others_read_stays():
    model = build(read_twice=True)
    assert fuse_silu(model.graph) == 0
    assert len(model.graph) == 3


def test_a_product_that_is_the_result_keeps_its_name():
    model = build()
    product = model.graph[1].outputs[0]
    model.graph.outputs[0] = product
    assert fuse_silu(model.graph) == 0


def scaled(*, read_twice: bool = False) -> ir.Model:
    """y = x * sigmoid(1.702 * x) + z, or + 1.702 * x."""
    model = build()
    graph, x = model.graph, model.graph.inputs[0]
    stored = ir.tensor(np.float32(1.702), name="alpha")
    alpha = ir.Value(name="alpha", const_value=stored, shape=stored.shape, type=FLOAT)
    graph.register_initializer(alpha)
    scaling = ir.node("Mul", [alpha, x])
    scaling.outputs[0].name = "scaled"
    graph.insert_before(graph[0], scaling)
    graph[1].replace_input_with(0, scaling.outputs[0])
    if read_twice:
        graph[-1].replace_input_with(1, scaling.outputs[0])
    return model


def test_the_slope_of_a_sigmoid_is_taken_along():
    model, plain = scaled(), run(scaled())
    assert fuse_silu(model.graph) == 1
    assert [node.op_type for node in model.graph] == ["QuickGelu", "Add"]
    assert np.allclose(run(model), plain, atol=1e-6)


def test_a_slope_that_others_read_stays():
    model = scaled(read_twice=True)
    assert fuse_silu(model.graph) == 0
    assert len(model.graph) == 4
