"""Block quantisation: small errors, and the layout that ONNX Runtime's operators read."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from twostroke_export import quantise as module
from twostroke_export.quantise import BLOCK_SIZE, BLOCK_SIZES, Blocks, QuantisedMatrix, quantise


def matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Nibbles of the last axis, the low half first."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def dequantise(quantised: QuantisedMatrix, num_columns: int) -> np.ndarray:
    """[rows, columns] by the definition of MatMulNBits."""
    bits, values = quantised.blocks.bits, quantised.values
    zeros = np.float32(1 << (bits - 1))
    if quantised.zero_points is not None:
        zeros = unpack(quantised.zero_points) if bits == 4 else quantised.zero_points
        zeros = zeros[:, : values.shape[1], None].astype(np.float32)
    values = unpack(values) if bits == 4 else values
    blocks = (values.astype(np.float32) - zeros) * quantised.scales[..., None].astype(np.float32)
    return blocks.reshape(len(blocks), -1)[:, :num_columns]


KINDS = [Blocks(bits, is_symmetric=flag) for bits in (8, 4) for flag in (True, False)]


@pytest.mark.parametrize("blocks", KINDS)
@pytest.mark.parametrize("columns", [64, 80, 96])
def test_error_stays_below_a_step_of_each_block(blocks, columns):
    original = matrix(40, columns)
    quantised = quantise(original, blocks)
    padded = np.pad(original, ((0, 0), (0, -columns % BLOCK_SIZE)))
    peaks = np.abs(padded.reshape(40, -1, BLOCK_SIZE)).max(-1).repeat(BLOCK_SIZE, axis=1)
    error = np.abs(dequantise(quantised, columns) - original)
    worst = 1 / 127 if blocks.bits == 8 else 2 / 15
    assert (error <= worst * peaks[:, :columns]).all()
    assert error.max() > 0


def test_eight_bits_keep_each_blocks_peak_exactly():
    original = matrix(8, 64)
    found = dequantise(quantise(original, Blocks(8)), 64)
    peaks = np.abs(original.reshape(8, 2, 32)).argmax(-1)
    for row in range(8):
        for block in range(2):
            column = block * 32 + peaks[row, block]
            assert found[row, column] == pytest.approx(original[row, column], rel=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_chosen_for_the_scales_that_are_stored(bits):
    """Weights so small that half precision rounds their scales by several per cent."""
    original = matrix(16, 64) * np.float32(2e-5)
    half = quantise(original, Blocks(bits, floats="float16"))
    assert half.scales.dtype == np.float16
    stored = half.scales.astype(np.float32)[..., None]
    middle, top = 1 << (bits - 1), (1 << bits) - 1
    nearest = np.clip(np.rint(original.reshape(16, 2, 32) / stored) + middle, 0, top)
    best = ((nearest - middle) * stored).reshape(16, 64)
    error, best_error = (np.square(x - original).sum() for x in (dequantise(half, 64), best))
    assert error <= best_error * (1 + 1e-5)


def test_clipping_is_never_worse_than_the_plain_range():
    original = matrix(64, 64)
    blocks = original.reshape(64, 2, 32)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    scale = (high - low) / 15
    zero = np.clip(np.rint(-low / scale), 0, 15)
    plain = (np.clip(np.rint(blocks / scale) + zero, 0, 15) - zero) * scale
    plain_error = np.square(plain - blocks).sum()
    assert (
        np.square(
            dequantise(quantise(original, Blocks(4, is_symmetric=False)), 64) - original
        ).sum()
        < plain_error
    )


@pytest.mark.parametrize("blocks", KINDS)
def test_zeros_stay_zero(blocks):
    quantised = quantise(np.zeros((3, 32), np.float32), blocks)
    assert (dequantise(quantised, 32) == 0).all()
    assert np.isfinite(quantised.scales).all()


@pytest.mark.parametrize("blocks", KINDS)
def test_chunks_of_rows_change_nothing(blocks, monkeypatch):
    original = matrix(10, 64)
    whole = quantise(original, blocks)
    monkeypatch.setattr("twostroke_export.quantise._CHUNK_ELEMENTS", 3 * 64)
    pieces = quantise(original, blocks)
    assert (whole.values == pieces.values).all()
    assert (whole.scales == pieces.scales).all()


@pytest.mark.parametrize("size", BLOCK_SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [96, 256])
def test_matmulnbits_reads_it(kind, size, columns):
    original, x = matrix(48, columns), matrix(5, columns)
    quantised = quantise(original, Blocks(kind.bits, size, kind.is_symmetric))
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants(quantised)],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=48,
        bits=kind.bits,
        block_size=size,
        accuracy_level=0,
    )
    result = run(node, constants(quantised), {"x": x})
    assert np.allclose(result, x @ dequantise(quantised, columns).T, atol=1e-4)


@pytest.mark.parametrize("size", BLOCK_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_gather_block_quantized_reads_the_same_bytes(kind, size):
    original = matrix(48, 256)
    quantised = quantise(original, Blocks(kind.bits, size, kind.is_symmetric))
    values = constants(quantised)
    node = helper.make_node(
        "GatherBlockQuantized",
        ["values", "x", *list(values)[1:]],
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=size,
        bits=kind.bits,
    )
    values["values"] = quantised.values.reshape(48, -1)
    ids = np.array([[0, 47], [13, 5]])
    result = run(node, values, {"x": ids})
    assert np.allclose(result, dequantise(quantised, 256)[ids], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [96, 256])
def test_tells_its_size_before_it_is_made(kind, columns):
    blocks = Blocks(kind.bits, 64, kind.is_symmetric, "float16")
    arrays = constants(quantise(matrix(48, columns), blocks)).values()
    assert blocks.num_bytes(48, columns) == sum(array.nbytes for array in arrays)


def constants(quantised: QuantisedMatrix) -> dict[str, np.ndarray]:
    found = {"values": quantised.values, "scales": quantised.scales}
    if quantised.zero_points is not None:
        found["zeros"] = quantised.zero_points
    return found


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


@pytest.mark.parametrize("blocks", [Blocks(4, 32, False), Blocks(4, 32, True)], ids=str)
def test_important_columns_are_kept_nearer(blocks):
    original = matrix(64, 64)
    importance = np.where(np.arange(64) % 8 == 0, 100, 0.1).astype(np.float32)
    plain, weighed = (quantise(original, blocks, given) for given in (None, importance))
    errors = [
        np.square(dequantise(found, 64) - original) @ importance for found in (plain, weighed)
    ]
    assert errors[1].sum() < 0.8 * errors[0].sum()
    assert (errors[1] <= errors[0] * 1.001).mean() > 0.9


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_it_can_be_read_back(bits, is_symmetric):
    original = matrix(10, 80)
    quantised = quantise(original, Blocks(bits, 32, is_symmetric))
    assert (module.dequantise(quantised, 80) == dequantise(quantised, 80)).all()
