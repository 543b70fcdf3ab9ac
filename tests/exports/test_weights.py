"""The one data file: each content once, aligned, named the same in both graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from twostroke_export.weights import WEIGHTS_NAME, WeightFile


def initializer(name: str, array: np.ndarray) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(array, name=name))


def graph_of(**arrays: np.ndarray) -> ir.Graph:
    """A graph that reads each array once."""
    values = [initializer(name, array) for name, array in arrays.items()]
    nodes = [ir.node("Identity", [value]) for value in values]
    outputs = [node.outputs[0] for node in nodes]
    return ir.Graph([], outputs, nodes=nodes, initializers=values, opset_imports={"": 23})


def test_equal_bytes_are_stored_once(tmp_path):
    array = np.arange(2048, dtype=np.float32)
    with WeightFile(tmp_path) as weights:
        first = weights.add(array)
        size = (tmp_path / WEIGHTS_NAME).stat().st_size
        again = weights.add(array.copy())
        shaped = weights.reshaped(first, (32, 64))
    assert first.name == again.name != shaped.name
    assert first.offset == again.offset == shaped.offset
    assert (tmp_path / WEIGHTS_NAME).stat().st_size == max(size, array.nbytes)
    assert (shaped.numpy() == array.reshape(32, 64)).all()


def test_tensors_lie_on_pages(tmp_path):
    arrays = [np.full(size, size, np.float32) for size in (3, 2000, 70, 1500)]
    with WeightFile(tmp_path) as weights:
        tensors = [weights.add(array) for array in arrays]
    assert [tensor.offset % 4096 for tensor in tensors if tensor.nbytes >= 4096] == [0, 0]
    assert [tensor.offset % 64 for tensor in tensors] == [0] * 4
    assert all((t.numpy() == a).all() for t, a in zip(tensors, arrays, strict=True))


def test_an_array_in_another_order_is_stored_as_it_reads(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with WeightFile(tmp_path) as weights:
        stored = weights.add(array.T)
    assert (stored.numpy() == array.T).all()


def test_once_makes_once(tmp_path):
    calls = []
    with WeightFile(tmp_path) as weights:
        for _ in range(2):
            weights.once("key", lambda: calls.append(1) or np.zeros(4))
    assert calls == [1]


def test_initializers_get_the_same_names_in_both_graphs(tmp_path):
    big, small = np.random.default_rng(0).standard_normal(500), np.zeros(3)
    one = graph_of(alpha=big, beta=small)
    other = graph_of(unrelated=big + 1, gamma=big)
    with WeightFile(tmp_path) as weights:
        weights.store_initializers(one)
        weights.store_initializers(other)
    names = [{name for name in graph.initializers if name[0] == "w"} for graph in (one, other)]
    assert names[0] < names[1]
    assert len(names[1]) == 2
    assert {name for name in one.initializers if name[0] == "c"}  # the small one stays inline


def test_equal_initializers_become_one(tmp_path):
    array = np.ones(500, np.float32)
    graph = graph_of(alpha=array, beta=array.copy())
    with WeightFile(tmp_path) as weights:
        weights.store_initializers(graph)
    (value,) = graph.initializers.values()
    assert [node.inputs[0] for node in graph] == [value, value]


def test_unused_initializers_go(tmp_path):
    graph = graph_of(alpha=np.ones(500))
    graph.register_initializer(initializer("nobody", np.zeros(5000)))
    with WeightFile(tmp_path) as weights:
        weights.store_initializers(graph)
    assert len(graph.initializers) == 1
    assert (tmp_path / WEIGHTS_NAME).stat().st_size == 4000


def test_data_behind_two_gibibytes_is_found(tmp_path):
    """The file has a hole, which takes no space and no time."""
    matrix = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    graph = graph_of(matrix=matrix)
    x = ir.val("x", shape=ir.Shape(["rows", 64]), type=ir.TensorType(ir.DataType.FLOAT))
    graph.inputs.append(x)
    product = ir.node("MatMul", [x, graph.initializers["matrix"]])
    product.outputs[0].name = "y"
    graph.append(product)
    graph.outputs[:] = product.outputs
    with WeightFile(tmp_path) as weights:
        weights._file.seek((1 << 31) + (1 << 20))
        weights.store_initializers(graph)
    (tensor,) = (value.const_value for value in graph.initializers.values())
    assert tensor.offset > 1 << 31
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "graph.onnx")
    session = ort.InferenceSession(tmp_path / "graph.onnx", providers=["CPUExecutionProvider"])
    rows = np.eye(64, dtype=np.float32)[:3]
    np.testing.assert_array_equal(session.run(["y"], {"x": rows})[0], matrix[:3])
