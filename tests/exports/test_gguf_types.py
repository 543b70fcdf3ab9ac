"""Each type of tensor that GGUF files come with: what is loaded is what the file means.

The types that the gguf package writes are compared with its own reading; blocks of Q4_K and Q6_K
are written here from their description in ggml-common.h, which says what they mean too.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest

from twostroke.bundle import open_bundle
from twostroke_export.load import load
from twostroke_export.pipeline import export_all
from twostroke_export.source import resolve
from twostroke_export.testing.tiny_gguf import FFN, HIDDEN, Kind, save_tiny_gguf, tensors

DOWN, UP = "blk.{}.ffn_down.weight", "blk.{}.ffn_up.weight"


def parameter(model, gguf_name: str) -> np.ndarray:
    _, layer, name, _ = gguf_name.split(".")
    mlp = model.model.layers[int(layer)].mlp
    return {"ffn_down": mlp.down_proj, "ffn_up": mlp.up_proj}[name].weight.numpy()


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("F32", 0), ("F16", 5e-4), ("BF16", 5e-3), ("Q8_0", 5e-3), ("Q4_0", 0.08), ("Q4_1", 0.05)],
)
def test_types_that_the_package_writes(tmp_path, kind, tolerance):
    values = tensors()
    names = [DOWN.format(0), UP.format(1)]
    stored = {name: (gguf.quantize(values[name], Kind[kind]), Kind[kind]) for name in names}
    model = load(resolve(str(save_tiny_gguf(tmp_path / "x.gguf", stored=stored)))).model
    for name in names:
        loaded = parameter(model, name)
        assert np.abs(loaded - values[name]).max() <= tolerance
        np.testing.assert_array_equal(loaded, gguf.dequantize(stored[name][0], Kind[kind]))


def q4_k(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A block of 256: d and dmin (fp16), eight 6-bit scales and minima in 12 bytes, nibbles."""
    d, least = random.uniform(0.001, 0.01, 2).astype(np.float16)
    scales, minima = random.integers(0, 64, (2, 8), np.uint8)
    quants = random.integers(0, 16, (8, 32), np.uint8)
    low = [scales[:4] | (scales[4:] >> 4 << 6), minima[:4] | (minima[4:] >> 4 << 6)]
    packed = np.concatenate([*low, (scales[4:] & 15) | (minima[4:] & 15) << 4])
    nibbles = quants[0::2] | quants[1::2] << 4  # [4, 32]: two runs of 32 share their bytes
    block = np.concatenate([np.array([d, least]).view(np.uint8), packed, nibbles.ravel()])
    means = np.float32(d) * scales[:, None] * quants - np.float32(least) * minima[:, None]
    return block, means.ravel()


def q6_k(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A block of 256: low nibbles, high pairs of bits, sixteen signed scales, d (fp16)."""
    d = np.float16(random.uniform(0.0001, 0.001))
    scales = random.integers(-128, 128, 16).astype(np.int8)
    quants = random.integers(0, 64, (2, 4, 32), np.uint8)  # halves of 128, four runs of 32 each
    low = (quants[:, :2] & 15) | (quants[:, 2:] & 15) << 4  # [2, 2, 32]
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(quants >> 4 << shifts, axis=1)  # [2, 32]
    tail = [scales.view(np.uint8), np.array([d]).view(np.uint8)]
    block = np.concatenate([low.ravel(), high.ravel(), *tail])
    signed = quants.reshape(16, 16).astype(np.float32) - 32
    return block, (np.float32(d) * scales[:, None] * signed).ravel()


@pytest.mark.parametrize(("kind", "make"), [("Q4_K", q4_k), ("Q6_K", q6_k)])
def test_types_of_256_values(tmp_path, kind, make: Callable):
    random = np.random.default_rng(3)
    made = [make(random) for _ in range(HIDDEN * FFN // 256)]
    data = np.stack([block for block, _ in made]).reshape(HIDDEN, -1)
    expected = np.stack([means for _, means in made]).reshape(HIDDEN, FFN)
    name = DOWN.format(1)
    path = save_tiny_gguf(tmp_path / "x.gguf", stored={name: (data, Kind[kind])})
    loaded = parameter(load(resolve(str(path))).model, name)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(loaded, expected, atol=1e-6)


def test_a_file_of_several_types_is_exported(tmp_path):
    random = np.random.default_rng(4)
    values = tensors()
    stored = {name: (values[name], Kind.F32) for name in values if values[name].ndim == 1}
    for name, tensor in values.items():
        if tensor.ndim == 2:
            stored[name] = (gguf.quantize(tensor, Kind.Q8_0), Kind.Q8_0)
    for layer in range(2):
        blocks = [q4_k(random)[0] for _ in range(HIDDEN * FFN // 256)]
        stored[DOWN.format(layer)] = (np.stack(blocks).reshape(HIDDEN, -1), Kind.Q4_K)
    path = save_tiny_gguf(tmp_path / "mixed.gguf", stored=stored)
    export_all(str(path), {"fp32": tmp_path / "out"})
    verification = open_bundle(tmp_path / "out").manifest.verification
    assert verification.num_argmax_equal == verification.num_steps == 17
