"""The declarations of a graph, read from its bytes, against what ONNX Runtime reads."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from twostroke.bundle.graph_header import read_header
from twostroke.bundle.wire import wire_fields
from twostroke.errors import BundleError

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
GRAPHS = sorted(FOREIGN.glob("*/*.onnx"))
SMALLEST = FOREIGN / "genai-llama-int4" / "model.onnx"
TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)", "bool": "tensor(bool)"}


def test_there_are_graphs_of_every_tool():
    assert len(GRAPHS) == 8


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_declares_what_the_runtime_says(path):
    header = read_header(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for declared, found in (
        (header.inputs, session.get_inputs()),
        (header.outputs, session.get_outputs()),
    ):
        assert list(declared) == [tensor.name for tensor in found]
        for tensor in found:
            assert TYPES[declared[tensor.name].dtype] == tensor.type
            # The runtime may know more of an output than the file says, never otherwise.
            for said, inferred in zip(declared[tensor.name].shape, tensor.shape, strict=True):
                assert said == inferred or isinstance(said, str)


def test_it_knows_where_weights_lie_and_how_they_are_packed():
    header = read_header(SMALLEST)
    data = SMALLEST.with_name("model.onnx.data")
    assert list(header.external) == [data.name]
    assert 0 < header.external[data.name] <= data.stat().st_size
    assert dict(header.weight_bits) == {4: 11}
    assert header.operators["GroupQueryAttention"] == 2
    assert header.num_weights["uint8"] > 10_000


def test_weights_in_the_file_itself_are_counted():
    header = read_header(FOREIGN / "optimum-llama-past" / "model.onnx")
    assert header.external == {}
    # Embedding and head of 300 ids, and two layers, at a hidden size of 16.
    assert header.num_weights["float32"] > 2 * 300 * 16


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path):
    whole = SMALLEST.read_bytes()
    path = tmp_path / "cut.onnx"
    for size in (*range(0, len(whole), 251), len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleError, match=r"cut\.onnx is not a whole ONNX graph"):
            read_header(path)


def test_changed_bytes_raise_nothing_but_a_bundle_error(tmp_path):
    whole = SMALLEST.read_bytes()
    path = tmp_path / "changed.onnx"
    num_refused = 0
    for position in range(0, len(whole), 61):
        changed = bytearray(whole)
        changed[position] ^= 0xFF
        path.write_bytes(changed)
        try:
            read_header(path)
        except BundleError:
            num_refused += 1
    assert num_refused > 50


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(BundleError, match=r"none\.onnx cannot be read: No such file"):
        read_header(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\x09abc", b"\x80" * 11, b"\x00\x01"],
    ids=["no length", "short", "group", "short fixed", "endless number", "field zero"],
)
def test_bytes_of_no_message(message):
    with pytest.raises(ValueError, match="byte"):
        list(wire_fields(memoryview(message)))
