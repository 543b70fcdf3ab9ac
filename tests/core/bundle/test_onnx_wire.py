"""The tiny graphs, written without the package onnx, are what that package reads."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.bundle import onnx_wire
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.testing.tiny_model import tiny_weights

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module", params=["float32", "float16"])
def made(request, tmp_path_factory):
    model = TinyModel(kv_dtype=request.param, dialects=("fused", "standard"))
    return model, make_onnx_bundle(tmp_path_factory.mktemp("wire") / "tiny", model)


def test_onnx_finds_nothing_wrong(made):
    _, folder = made
    graphs = sorted(folder.glob("*.onnx"))
    assert len(graphs) == 4
    for graph in graphs:
        onnx.checker.check_model(str(graph), full_check="standard" in graph.name)


def test_the_weights_come_back(made):
    model, folder = made
    graph = onnx.load(str(folder / "decode.onnx")).graph
    found = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    for name, values in tiny_weights(model).items():
        assert found[name].dtype == np.dtype(model.kv_dtype)
        assert np.array_equal(found[name], values), name


def test_both_strokes_read_the_same_bytes(made):
    model, folder = made
    places = []
    for name in ("prefill.onnx", "decode.onnx"):
        graph = onnx.load(str(folder / name), load_external_data=False).graph
        places.append(
            {
                each.name: {entry.key: entry.value for entry in each.external_data}
                for each in graph.initializer
                if each.external_data
            }
        )
    assert places[0] == places[1]
    assert set(places[0]) == set(tiny_weights(model))


def test_numbers_and_lists_and_negative_ones():
    node = onnx.NodeProto.FromString(
        onnx_wire.node("Op", ["a", ""], ["b"], "mine", axis=-1, large=2**40, perm=[0, -2, 300])
    )
    assert (list(node.input), list(node.output), node.domain) == (["a", ""], ["b"], "mine")
    told = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert told == {"axis": -1, "large": 2**40, "perm": [0, -2, 300]}


def test_small_tensors_lie_in_the_graph():
    file = onnx_wire.WeightsFile("weights.bin")
    small = onnx.TensorProto.FromString(onnx_wire.tensor("s", np.array([[1, -2]]), file))
    assert onnx.numpy_helper.to_array(small).tolist() == [[1, -2]]
    assert not file.content
    for _ in range(2):
        encoded = onnx_wire.tensor("t", np.arange(65, dtype=np.float32), file)
    large = onnx.TensorProto.FromString(encoded)
    told = {entry.key: entry.value for entry in large.external_data}
    assert told == {"location": "weights.bin", "offset": "320", "length": "260"}
    assert len(file.content) == 320 + 260
