"""MoE and QMoE against their plain forms, of a prompt and of single tokens."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.errors import ExportError
from twostroke_export.quantise import Blocks, quantise

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, INNER = 5, 2, 64, 96
SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": NUM_CHOSEN}
CLAMPED = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}
GATES = {
    "silu": {"activation_alpha": 1.0, "activation_beta": 0.0},
    "clamped": CLAMPED,
}
SIZES = ((2 * INNER, HIDDEN), (HIDDEN, INNER))
NUM_TOKENS = 7
STROKES = pytest.mark.parametrize("is_single_token", [False, True], ids=["prefill", "decode"])


def routed(one):
    """States [tokens, hidden] and logits [tokens, experts]."""
    states = one.input("x", one.random(NUM_TOKENS, HIDDEN), "tokens", HIDDEN)
    router = one.input("router", one.random(NUM_TOKENS, NUM_EXPERTS), "tokens", NUM_EXPERTS)
    return states, router


@STROKES
@pytest.mark.parametrize("is_normalised", [0, 1])
@pytest.mark.parametrize("gate", GATES)
def test_experts_in_floats(fused, gate, is_normalised, is_single_token):
    one = fused(is_single_token=is_single_token)
    inputs = [*routed(one)]
    for size in SIZES:
        inputs.append(one.stored(one.random(NUM_EXPERTS, *size) / 8))
        has_bias = gate == "clamped"
        inputs.append(one.stored(one.random(NUM_EXPERTS, size[0])) if has_bias else None)
    options = {**SWIGLU, **GATES[gate], "normalize_routing_weights": is_normalised}
    theirs, mine, model = one.run("MoE", inputs, ["y"], **options)
    np.testing.assert_allclose(mine["y"], theirs["y"], atol=2e-5)
    is_gathered = any(n.op_type == "Gather" and n.inputs[0] is inputs[2] for n in model.graph)
    assert is_gathered is is_single_token  # single tokens read as many as they chose


@STROKES
@pytest.mark.parametrize(
    "blocks", [Blocks(8), Blocks(4), Blocks(4, is_symmetric=False), Blocks(8, 16, False)]
)
def test_quantised_experts(fused, blocks, is_single_token):
    """The operator multiplies in int8; what it should give comes from MoE in floats."""
    one = fused(is_single_token=is_single_token)
    states, router = routed(one)
    weights = np.exp(one.feeds["router"] / 2)
    one.feeds["router"] = weights
    parts, zeros, floats = [], [], []
    for size in SIZES:
        made = [quantise(one.random(*size) / 8, blocks) for _ in range(NUM_EXPERTS)]
        parts += [stacked(one, made, "values"), stacked(one, made, "scales"), None]
        zeros.append(None if blocks.is_symmetric else stacked(one, made, "zero_points"))
        floats.append(np.stack([dequantised(matrix) for matrix in made]))
    inputs = [states, router, *parts, None, None, None, *zeros, None, router]
    options = {"expert_weight_bits": blocks.bits, "block_size": blocks.size, **CLAMPED}
    theirs, mine, _ = one.run("QMoE", inputs, ["y"], **SWIGLU, **options)
    expected = reference(one.feeds["x"], weights, *floats)
    np.testing.assert_allclose(mine["y"], expected, atol=2e-4)
    np.testing.assert_allclose(theirs["y"], expected, atol=0.05 * np.abs(expected).max())


def stacked(one, made: list, name: str):
    arrays = [getattr(matrix, name) for matrix in made]
    return one.stored(np.stack([array.reshape(len(array), -1) for array in arrays]))


def dequantised(matrix) -> np.ndarray:
    """[out, in], by the definition."""
    bits, size = matrix.blocks.bits, matrix.blocks.size
    num_rows, num_blocks = matrix.scales.shape
    values, zeros = matrix.values.reshape(num_rows, -1), matrix.zero_points
    zeros = np.full((num_rows, num_blocks), 1 << (bits - 1)) if zeros is None else zeros
    if bits == 4:
        values = halves(values)
        zeros = zeros if matrix.zero_points is None else halves(zeros)[:, :num_blocks]
    blocks = values.reshape(num_rows, num_blocks, size).astype(np.float32)
    return ((blocks - zeros[..., None]) * matrix.scales[..., None]).reshape(num_rows, -1)


def halves(packed: np.ndarray) -> np.ndarray:
    return np.stack((packed & 15, packed >> 4), -1).reshape(len(packed), -1)


def reference(states, weights, gate_up, down) -> np.ndarray:
    """gpt-oss's experts, token by token."""
    mixed = np.zeros_like(states)
    for token, state in enumerate(states):
        for expert in np.argsort(-weights[token])[:NUM_CHOSEN]:
            pairs = gate_up[expert] @ state
            gate, up = np.minimum(pairs[0::2], 0.5), np.clip(pairs[1::2], -0.5, 0.5)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            mixed[token] += weights[token, expert] * (down[expert] @ inner)
    return mixed


def test_another_activation_is_refused(fused):
    one = fused()
    inputs = [*routed(one)]
    for size in ((INNER, HIDDEN), (HIDDEN, INNER)):
        inputs += [one.stored(one.random(NUM_EXPERTS, *size)), None]
    with pytest.raises(ExportError, match="use MoE with activation_type=relu"):
        one.run("MoE", inputs, ["y"], k=2, activation_type="relu")
