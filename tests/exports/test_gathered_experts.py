"""Experts that are gathered, or multiplied whole, read quantised matrices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from twostroke_export.passes.gathered_experts import lower_gathered_experts
from twostroke_export.precision import Lowering
from twostroke_export.weights import WeightFile

NUM_EXPERTS, ROWS, COLUMNS = 5, 12, 64
STATES = np.random.default_rng(2).standard_normal((2, COLUMNS, 3)).astype(np.float32)


def build(op_type: str, shape=(NUM_EXPERTS, ROWS, COLUMNS), axis: int = 0) -> ir.Model:
    """[2, rows, 3]: the experts that the ids choose, or [experts, rows, 3]: all of them."""
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    stack = ir.Value(name="stack", const_value=ir.tensor(array, name="stack"))
    ids = ir.Value(
        name="input_ids", shape=ir.Shape(["batch"]), type=ir.TensorType(ir.DataType.INT64)
    )
    states = ir.Value(
        name="states",
        shape=ir.Shape(["experts", COLUMNS, 3]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    nodes = []
    if op_type == "Gather":
        nodes = [ir.node("Gather", [stack, ids], {"axis": axis})]
    left = nodes[0].outputs[0] if nodes else stack
    nodes.append(ir.node("MatMul", [left, states]))
    nodes[-1].outputs[0].name, nodes[-1].outputs[0].type = "y", states.type
    graph = ir.Graph(
        [ids, states],
        nodes[-1].outputs,
        nodes=nodes,
        initializers=[stack],
        opset_imports={"": 23},
    )
    return ir.Model(graph, ir_version=10)


def lowered(model: ir.Model, bits: int | None, folder) -> tuple[int, Counter]:
    with WeightFile(folder) as weights:
        count = lower_gathered_experts(model.graph, Lowering(lambda _: bits, 8), weights)
        weights.store_initializers(model.graph)
    return count, Counter(node.op_type for node in model.graph)


def run(model: ir.Model, folder, states: np.ndarray) -> np.ndarray:
    ir.save(model, folder / "model.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    session = ort.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"input_ids": np.array([3, 1]), "states": states})[0]


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.02), (4, 0.3)])
def test_a_gather_reads_the_chosen_experts(tmp_path, bits, tolerance):
    model = build("Gather")
    stack = model.graph.initializers["stack"].const_value.numpy()
    assert lowered(model, bits, tmp_path) == (1, Counter(GatherBlockQuantized=1, MatMul=1))
    expected = stack[[3, 1]] @ STATES
    difference = np.abs(run(model, tmp_path, STATES) - expected).max()
    assert 0 < difference < tolerance * np.abs(expected).max()


def test_a_product_with_all_experts_is_not_folded_at_load(tmp_path):
    model = build("MatMul")
    stack = model.graph.initializers["stack"].const_value.numpy()
    states = np.repeat(STATES[:1], NUM_EXPERTS, axis=0)
    count, ops = lowered(model, 8, tmp_path)
    assert (count, ops["GatherBlockQuantized"]) == (1, 1)
    np.testing.assert_allclose(run(model, tmp_path, states), stack @ states, atol=0.3)
    optimised = ir.load(tmp_path / "optimised.onnx").graph
    assert "GatherBlockQuantized" in {node.op_type for node in optimised}


def test_two_stacks_share_what_names_all_experts(tmp_path):
    model = build("MatMul")
    array = np.ones((NUM_EXPERTS, 4, 32), np.float32)
    other = ir.Value(name="other", const_value=ir.tensor(array, name="other"))
    model.graph.initializers["other"] = other
    model.graph.append(ir.node("MatMul", [other, model.graph.inputs[1]]))
    count, ops = lowered(model, 8, tmp_path)
    assert (count, ops["GatherBlockQuantized"], ops["Shape"]) == (2, 2, 1)


@pytest.mark.parametrize(
    ("model", "bits"),
    [
        (build("Gather"), None),
        (build("Gather", axis=1), 8),
        (build("Gather", shape=(NUM_EXPERTS, ROWS, 24)), 8),
        (build("Gather", shape=(NUM_EXPERTS, COLUMNS)), 8),
    ],
    ids=["floats are asked for", "another axis", "no block fits", "no stack"],
)
def test_everything_else_stays(tmp_path, model, bits):
    assert lowered(model, bits, tmp_path) == (0, Counter(Gather=1, MatMul=1))
