from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from twostroke_backends.external_data import SharedData, relocate


def tensor(name: str, **entries: str) -> TensorProto:
    """A float tensor [4] whose data lies elsewhere."""
    proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    proto.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        proto.external_data.add(key=key, value=value)
    return proto


def model(*initializers: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["y"], name="a node", to=300)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node], "g", [value], [value], list(initializers))
    return helper.make_model(graph, ir_version=10, producer_name="a test")


def entries(proto: bytes, position: int = 0) -> dict[str, str]:
    found = onnx.ModelProto.FromString(proto).graph.initializer[position].external_data
    return {entry.key: entry.value for entry in found}


def test_only_the_places_change():
    inline = numpy_helper.from_array(np.arange(3, dtype=np.float32), "inline")
    original = model(tensor("w", location="own.bin", offset="8", length="16"), inline)
    moved = relocate(original.SerializeToString(), "shared.bin", lambda offset, length: 4096)
    assert entries(moved) == {"location": "shared.bin", "offset": "4096", "length": "16"}
    back = onnx.ModelProto.FromString(moved)
    back.graph.initializer[0].CopyFrom(original.graph.initializer[0])
    assert back == original


def test_packed_pieces_move_with_their_weight():
    packed = "MatMul+123|100;20;0|200;30;7"
    original = model(tensor("w", location="own.bin", offset="8", length="16", prepacked_0=packed))
    moved = relocate(original.SerializeToString(), "s", lambda offset, length: offset * 1000)
    assert entries(moved)["prepacked_0"] == "MatMul+123|100000;20;0|200000;30;7"
    assert entries(moved)["offset"] == "8000"


@pytest.mark.parametrize("odd", [{"prepacked_0": "MatMul"}, {"unheard_of": "1"}])
def test_what_is_not_understood_is_refused(odd):
    original = model(tensor("w", location="own.bin", offset="8", length="16", **odd))
    with pytest.raises(ValueError, match="external data entry"):
        relocate(original.SerializeToString(), "s", lambda offset, length: 0)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_cut_off_graph_is_refused(cut):
    whole = model(tensor("w", location="own.bin", offset="8", length="16")).SerializeToString()
    with pytest.raises(ValueError, match="cut off"):
        relocate(whole[:-cut], "s", lambda offset, length: 0)


def test_equal_bytes_are_held_once(tmp_path):
    shared = SharedData(tmp_path / "shared.bin")
    weights = [bytes([n]) * 16 for n in range(3)]
    orders = {"first": [0, 1, 2], "second": [2, 0], "third": [1, 1]}
    for name, order in orders.items():
        data = tmp_path / f"{name}.bin"
        data.write_bytes(b"".join(weights[n] for n in order))
        tensors = [
            tensor(f"w{i}", location=data.name, offset=str(16 * i), length="16")
            for i in range(len(order))
        ]
        graph = tmp_path / f"{name}.onnx"
        graph.write_bytes(model(*tensors).SerializeToString())
        moved = shared.take(graph, data)
        held = (tmp_path / "shared.bin").read_bytes()
        for position, number in enumerate(order):
            offset = int(entries(moved, position)["offset"])
            assert offset % 4096 == 0
            assert held[offset : offset + 16] == weights[number]
    assert len(held) == 2 * 4096 + 16  # three pieces, each on a page of its own


def test_data_shorter_than_the_graph_says_is_refused(tmp_path):
    (tmp_path / "g.bin").write_bytes(b"short")
    graph = tmp_path / "g.onnx"
    one = model(tensor("w", location="g.bin", offset="0", length="16"))
    graph.write_bytes(one.SerializeToString())
    with pytest.raises(ValueError, match="ends before byte 16"):
        SharedData(tmp_path / "shared.bin").take(graph, tmp_path / "g.bin")


def test_a_graph_without_data_stays_as_it_is(tmp_path):
    graph = tmp_path / "g.onnx"
    graph.write_bytes(model().SerializeToString())
    shared = SharedData(tmp_path / "shared.bin")
    assert shared.take(graph, tmp_path / "absent.bin") == graph.read_bytes()
