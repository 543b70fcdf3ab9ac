"""Small graphs written as text, and a check that a pass moves none of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes import common

FREE_SIZES = {"batch": 2, "sequence": 3}
OPSETS = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'


@pytest.fixture
def parse() -> Callable[..., ir.Model]:
    """`parse("(float[batch, 4] x) => (float[batch, 4] y) { y = Add(x, w) }", w=array)`."""

    def parse(graph: str, **stored: np.ndarray) -> ir.Model:
        proto = onnx.parser.parse_model(f"{OPSETS} g {graph}")
        for name, array in stored.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto))

    return parse


@pytest.fixture
def keeps_numbers() -> Callable[..., tuple[int, list[str]]]:
    """Applies a pass, asserts equal outputs, and answers its count and the operators that stay."""

    def check(
        model: ir.Model, apply: Callable[[ir.Graph], int], **feeds: np.ndarray
    ) -> tuple[int, list[str]]:
        inputs = {value.name: feeds.get(value.name, example(value)) for value in model.graph.inputs}
        before = run(model, inputs)
        count = apply(model.graph)
        common.RemoveUnusedNodesPass()(model)
        for mine, theirs in zip(run(model, inputs), before, strict=True):
            assert mine.shape == theirs.shape
            assert np.abs(mine - theirs).max() < 1e-5
        return count, [node.op_type for node in model.graph]

    return check


def example(value: ir.Value) -> np.ndarray:
    shape = [dim if isinstance(dim, int) else FREE_SIZES[dim.value] for dim in value.shape]
    return np.random.default_rng(0).standard_normal(shape).astype(value.dtype.numpy())


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
