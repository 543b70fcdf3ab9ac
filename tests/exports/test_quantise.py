"""Block quantisation: small errors, and the layout that ONNX Runtime's operators read."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from twostroke_export.quantise import BLOCK_SIZE, QuantisedMatrix, quantise


def matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Nibbles of the last axis, the low half first."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def dequantise(quantised: QuantisedMatrix, num_columns: int) -> np.ndarray:
    """[rows, columns] by the definition of MatMulNBits."""
    values, zeros = quantised.values, np.float32(128)
    if quantised.bits == 4:
        values = unpack(values)
        zeros = unpack(quantised.zero_points)[:, : values.shape[1], None].astype(np.float32)
    blocks = (values.astype(np.float32) - zeros) * quantised.scales[..., None]
    return blocks.reshape(len(blocks), -1)[:, :num_columns]


@pytest.mark.parametrize(("bits", "worst"), [(8, 1 / 127), (4, 2 / 15)])
@pytest.mark.parametrize("columns", [64, 80, 96])
def test_error_stays_below_a_step_of_each_block(bits, worst, columns):
    original = matrix(40, columns)
    quantised = quantise(original, bits)
    padded = np.pad(original, ((0, 0), (0, -columns % BLOCK_SIZE)))
    peaks = np.abs(padded.reshape(40, -1, BLOCK_SIZE)).max(-1).repeat(BLOCK_SIZE, axis=1)
    error = np.abs(dequantise(quantised, columns) - original)
    assert (error <= worst * peaks[:, :columns]).all()
    assert error.max() > 0


def test_eight_bits_keep_each_blocks_peak_exactly():
    original = matrix(8, 64)
    found = dequantise(quantise(original, 8), 64)
    peaks = np.abs(original.reshape(8, 2, 32)).argmax(-1)
    for row in range(8):
        for block in range(2):
            column = block * 32 + peaks[row, block]
            assert found[row, column] == pytest.approx(original[row, column], rel=1e-6)


def test_clipping_is_never_worse_than_the_plain_range():
    original = matrix(64, 64)
    blocks = original.reshape(64, 2, 32)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    scale = (high - low) / 15
    zero = np.clip(np.rint(-low / scale), 0, 15)
    plain = (np.clip(np.rint(blocks / scale) + zero, 0, 15) - zero) * scale
    plain_error = np.square(plain - blocks).sum()
    assert np.square(dequantise(quantise(original, 4), 64) - original).sum() < plain_error


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_stay_zero(bits):
    quantised = quantise(np.zeros((3, 32), np.float32), bits)
    assert (dequantise(quantised, 32) == 0).all()
    assert np.isfinite(quantised.scales).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_chunks_of_rows_change_nothing(bits, monkeypatch):
    original = matrix(10, 64)
    whole = quantise(original, bits)
    monkeypatch.setattr("twostroke_export.quantise._CHUNK_ELEMENTS", 3 * 64)
    pieces = quantise(original, bits)
    assert (whole.values == pieces.values).all()
    assert (whole.scales == pieces.scales).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [64, 96])
def test_matmulnbits_reads_it(bits, columns):
    original, x = matrix(48, columns), matrix(5, columns)
    quantised = quantise(original, bits)
    constants = {"values": quantised.values, "scales": quantised.scales}
    if quantised.zero_points is not None:
        constants["zeros"] = quantised.zero_points
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=48,
        bits=bits,
        block_size=BLOCK_SIZE,
        accuracy_level=0,
    )
    result = run(node, constants, {"x": x})
    assert np.allclose(result, x @ dequantise(quantised, columns).T, atol=1e-4)


def test_gather_block_quantized_reads_the_same_bytes():
    original = matrix(48, 64)
    quantised = quantise(original, 8)
    node = helper.make_node(
        "GatherBlockQuantized",
        ["values", "x", "scales"],
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=BLOCK_SIZE,
        bits=8,
    )
    constants = {"values": quantised.values.reshape(48, 64), "scales": quantised.scales}
    ids = np.array([[0, 47], [13, 5]])
    result = run(node, constants, {"x": ids})
    assert np.allclose(result, dequantise(quantised, 64)[ids], atol=1e-6)


def run(node: onnx.NodeProto, constants: dict, feeds: dict) -> np.ndarray:
    kind = TensorProto.FLOAT if feeds["x"].dtype == np.float32 else TensorProto.INT64
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", kind, feeds["x"].shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]
