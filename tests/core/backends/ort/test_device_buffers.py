from __future__ import annotations

import gc

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from twostroke.backends.ort import (
    CPU_PROVIDER,
    OrtValueBuffer,
    allocate_host,
    allocate_on_device,
    load_session,
)
from twostroke.errors import BackendError, OutOfMemoryError
from twostroke.testing.host_as_device import HostAsDevice
from twostroke.testing.onnx_bundles import TinyModel, write_graphs
from twostroke.types import Stroke


def test_rows_are_views_at_their_offset():
    memory = HostAsDevice()
    buffer = allocate_on_device(memory, (4, 2, 3), "float16")
    assert not buffer.read().any()
    rows = buffer.rows(1, 2)
    assert (rows.shape, rows.dtype) == ((2, 2, 3), "float16")
    assert rows.address - buffer.address == 2 * 3 * 2
    rows.write(np.full((2, 2, 3), 5, np.float16))
    assert buffer.read()[:, 0, 0].tolist() == [0, 5, 5, 0]
    rows.rows(1, 1).write(np.full((1, 2, 3), 7, np.float16))
    assert buffer.read()[:, 0, 0].tolist() == [0, 5, 7, 0]


def test_a_view_in_another_shape_shares_memory():
    buffer = allocate_on_device(HostAsDevice(), (2, 6), "float32")
    view = buffer.reshaped((1, 2, 4))
    assert (view.address, view.shape, view.dtype) == (buffer.address, (1, 2, 4), "float32")
    view.write(np.arange(8, dtype=np.float32).reshape(1, 2, 4))
    assert buffer.read().reshape(-1).tolist() == [*range(8), 0, 0, 0, 0]
    with pytest.raises(BackendError, match="cannot be seen as"):
        buffer.reshaped((13,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_front_of_all_heads_is_reached_without_the_rest(dtype):
    memory = HostAsDevice()
    whole = allocate_on_device(memory, (3, 2, 8, 4), dtype)
    stored = whole.read().dtype
    everything = np.arange(3 * 2 * 8 * 4).reshape(3, 2, 8, 4).astype(stored)
    whole.write(everything)
    assert np.array_equal(whole.read_front(3), everything[:, :, :3])
    assert whole.read_front(0).shape == (3, 2, 0, 4)
    wanted = everything[1:2].copy()
    wanted[:, :, :5] = everything[2:, :, 2:7]  # not contiguous
    whole.rows(1, 1).write_front(everything[2:, :, 2:7])
    assert np.array_equal(whole.read()[1:2], wanted)
    assert np.array_equal(whole.read()[::2], everything[::2])
    with pytest.raises(BackendError, match="cannot take"):
        whole.write_front(np.zeros((3, 2, 9, 4), stored))
    with pytest.raises(BackendError, match="cannot take"):
        whole.write_front(np.zeros((3, 2, 2, 4), np.int64))


def test_tokens_go_from_buffer_to_buffer_on_the_device():
    memory = HostAsDevice()
    small, large = (allocate_on_device(memory, (2, 3, n, 4), "float16") for n in (4, 16))
    values = np.arange(2 * 3 * 4 * 4, dtype=np.float16).reshape(2, 3, 4, 4)
    small.write(values)
    large.write(np.full(large.shape, 9, np.float16))
    assert large.rows(1, 1).copy_front(small.rows(0, 1), 3)
    assert memory.num_copies_out == 0
    found = large.read()
    assert np.array_equal(found[1, :, :3], values[0, :, :3])
    assert (found[0] == 9).all()
    assert (found[1, :, 3:] == 9).all()
    other = allocate_on_device(HostAsDevice(), (2, 3, 4, 4), "float16")
    assert not large.copy_front(other, 3)
    assert not large.copy_front(allocate_host((2, 3, 4, 4), "float16"), 3)


def test_reading_copies():
    buffer = allocate_on_device(HostAsDevice(), (2,), "int32")
    read = buffer.read()
    read[:] = 9
    assert buffer.read().tolist() == [0, 0]


def test_a_view_of_an_array_is_written_as_it_looks():
    buffer = allocate_on_device(HostAsDevice(), (3, 2), "int64")
    buffer.write(np.arange(6).reshape(2, 3).T)
    assert buffer.read().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_bfloat16_is_moved_as_its_bits(tmp_path):
    """numpy has no such numbers: what is bound is told to the runtime as ONNX's."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "copy",
        [value("x", TensorProto.BFLOAT16, ["rows", 2])],
        [value("y", TensorProto.BFLOAT16, ["rows", 2])],
    )
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (tmp_path / "copy.onnx").write_bytes(model.SerializeToString())
    session = load_session(
        tmp_path / "copy.onnx", CPU_PROVIDER, {}, onnxruntime.SessionOptions(), on_host=False
    )
    memory = HostAsDevice()
    x, y = (allocate_on_device(memory, (3, 2), "bfloat16") for _ in range(2))
    assert x.rows(1, 1).address - x.address == 2 * 2
    bits = np.arange(6, dtype=np.uint16).reshape(3, 2) + 0x3F80  # from 1.0 upwards
    x.write(bits)
    session.bind({"x": x}, {"y": y}).run()
    assert (y.read() == bits).all()
    with pytest.raises(BackendError, match="cannot take"):
        x.write(bits.astype(np.float16))


def test_memory_is_given_back_with_the_last_view():
    memory = HostAsDevice()
    buffer = allocate_on_device(memory, (4, 8), "float32")
    rows = buffer.rows(0, 1)
    del buffer
    gc.collect()
    assert len(memory.blocks) == 1
    rows.write(np.ones((1, 8), np.float32))
    del rows
    gc.collect()
    assert not memory.blocks


def test_wrong_values_and_rows_are_refused():
    buffer = allocate_on_device(HostAsDevice(), (4, 2), "float32")
    with pytest.raises(BackendError, match="cannot take"):
        buffer.write(np.zeros((4, 2), np.float64))
    with pytest.raises(BackendError, match="outside a buffer of 4 rows"):
        buffer.rows(3, 2)
    handle = OrtValueBuffer((2, 2), "float32", "cpu", 0)
    with pytest.raises(BackendError, match="cannot take"):
        handle.write(np.zeros((2,), np.float32))
    with pytest.raises(BackendError, match="no row views"):
        handle.rows(0, 1)


def test_a_handle_holds_what_is_written():
    buffer = OrtValueBuffer((2, 3), "float32", "cpu", 0)
    assert not buffer.read().any()
    buffer.write(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert buffer.read().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_handle_that_cannot_be_had_is_told_in_bytes():
    with pytest.raises(OutOfMemoryError, match=r"16 bytes on npu 9 .*float32\[4\]"):
        OrtValueBuffer((4,), "float32", "npu", 9)


@pytest.mark.parametrize("kind", ["address", "handle"])
def test_a_graph_runs_on_device_buffers_as_on_host_buffers(tmp_path, kind):
    """The cache bound by address (a view of some row) or by handle gives the same logits."""
    model = TinyModel()
    write_graphs(tmp_path, model)
    graph = tmp_path / f"{Stroke.DECODE}.onnx"
    session = load_session(graph, CPU_PROVIDER, {}, onnxruntime.SessionOptions(), on_host=False)
    memory = HostAsDevice()

    def logits_with(make_cache) -> np.ndarray:
        sizes = {"batch": 1, "sequence": 1, "capacity": 16}
        inputs, outputs = {}, {}
        for name, spec in session.inputs.items():
            shape = tuple(sizes.get(d, d) for d in spec.shape)
            make = make_cache if name.startswith("past") else allocate_host
            inputs[name] = make(shape, spec.dtype)
            if name.startswith("past"):
                outputs[name.replace("past_key_values", "present")] = inputs[name]
        outputs["logits"] = allocate_host((1, 1, model.vocab_size), "float32")
        binding = session.bind(inputs, outputs)
        for position, token in enumerate([3, 1, 4]):
            inputs["input_ids"].write(np.array([[token]], np.int64))
            inputs["seqlens_k"].write(np.array([position], np.int32))
            inputs["total_sequence_length"].write(np.array(position + 1, np.int32))
            binding.run()
        assert np.abs(inputs["past_key_values.0.key"].read()[:, :, 2]).sum() > 0
        return outputs["logits"].read().copy()

    def on_device(shape: tuple[int, ...], dtype: str):
        if kind == "handle":
            return OrtValueBuffer(shape, dtype, "cpu", 0)
        return allocate_on_device(memory, (3, *shape[1:]), dtype).rows(1, 1)

    assert np.array_equal(logits_with(on_device), logits_with(allocate_host))
