"""Twins of bfloat16 graphs: the same numbers in float32, which a CPU can run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from twostroke_export.float32_twin import write_twins
from twostroke_export.weights import WEIGHTS_NAME, WeightFile

HALF, FULL = ir.DataType.BFLOAT16, ir.DataType.FLOAT


def test_a_twin_computes_with_the_rounded_weights(tmp_path):
    import ml_dtypes

    array = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    rounded = array.astype(ml_dtypes.bfloat16)
    x = ir.Value(name="x", type=ir.TensorType(FULL), shape=ir.Shape(["rows", 64]))
    weight = ir.Value(name="w", const_value=ir.tensor(rounded))
    small = ir.Value(name="two", const_value=ir.tensor(np.array(2, ml_dtypes.bfloat16)))
    one = ir.tensor(np.array([1], ml_dtypes.bfloat16))
    narrow = ir.node("Cast", [x], attributes={"to": HALF})
    product = ir.node("MatMul", [narrow.outputs[0], weight])
    doubled = ir.node("Mul", [product.outputs[0], small])
    constant = ir.node("Constant", [], attributes={"value": one})
    moved = ir.node("Add", [doubled.outputs[0], constant.outputs[0]])
    wide = ir.node("Cast", [moved.outputs[0]], attributes={"to": FULL})
    nodes = [narrow, product, doubled, constant, moved, wide]
    for number, node in enumerate(nodes):
        node.outputs[0].name = f"v{number}"
        node.outputs[0].type = ir.TensorType(FULL if node is wide else HALF)
    graph = ir.Graph(
        [x], wide.outputs, nodes=nodes, initializers=[weight, small], opset_imports={"": 23}
    )
    with WeightFile(tmp_path) as weights:
        weights.store_initializers(graph)
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "prefill.onnx")
    twins = tmp_path / "twins"
    twins.mkdir()
    write_twins([tmp_path / "prefill.onnx"], twins)
    assert (twins / WEIGHTS_NAME).stat().st_size >= rounded.size * 4
    session = ort.InferenceSession(str(twins / "prefill.onnx"), providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    expected = 2 * (rows @ rounded.astype(np.float32)) + 1
    assert np.allclose(session.run(None, {"x": rows})[0], expected, atol=1e-5)


def test_a_twin_keeps_quantised_weights_packed(tmp_path):
    """As the standard dialect reads them: uint4 with scales in bfloat16."""
    import ml_dtypes

    random = np.random.default_rng(0)
    values = random.integers(0, 16, (32, 64)).astype(np.uint8)
    scales = random.standard_normal((32, 2)).astype(ml_dtypes.bfloat16)
    x = ir.Value(name="x", type=ir.TensorType(FULL), shape=ir.Shape(["rows", 64]))
    with WeightFile(tmp_path) as weights:
        packed = weights.add(values[:, 0::2] | (values[:, 1::2] << 4))
        stored = weights.reshaped(packed, (32, 64), ir.DataType.UINT4)
        initializers = [
            ir.Value(name="w", const_value=stored),
            ir.Value(name="s", const_value=weights.add(scales)),
        ]
        matrix = ir.node("DequantizeLinear", initializers, {"axis": 1, "block_size": 32})
        turned = ir.node("Transpose", matrix.outputs, {"perm": (1, 0)})
        narrow = ir.node("Cast", [x], {"to": HALF})
        product = ir.node("MatMul", [narrow.outputs[0], turned.outputs[0]])
        wide = ir.node("Cast", product.outputs, {"to": FULL})
        nodes = [narrow, matrix, turned, product, wide]
        for number, node in enumerate(nodes):
            node.outputs[0].name = f"v{number}"
            node.outputs[0].type = ir.TensorType(FULL if node is wide else HALF)
        graph = ir.Graph(
            [x], wide.outputs, nodes=nodes, initializers=initializers, opset_imports={"": 23}
        )
        weights.store_initializers(graph)
        ir.save(ir.Model(graph, ir_version=10), tmp_path / "prefill.onnx")
    twins = tmp_path / "twins"
    twins.mkdir()
    write_twins([tmp_path / "prefill.onnx"], twins)
    session = ort.InferenceSession(str(twins / "prefill.onnx"), providers=["CPUExecutionProvider"])
    rows = random.standard_normal((3, 64)).astype(np.float32)
    expected = rows @ (values * np.repeat(scales.astype(np.float32), 32, axis=1)).T
    assert np.allclose(session.run(None, {"x": rows})[0], expected, atol=1e-3)
