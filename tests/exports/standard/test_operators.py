"""Each fused operator against its form in plain operators, on ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.errors import ExportError
from twostroke_export.passes.standard.standardise import OPSET
from twostroke_export.quantise import BLOCK_SIZE, Blocks, quantise

HEADS, KV_HEADS, HEAD_DIM, NUM_PAST, NUM_NEW = 6, 2, 32, 9, 5


def check(theirs, mine, tolerance: float = 2e-5) -> None:
    assert set(theirs) == set(mine)
    for name, array in theirs.items():
        np.testing.assert_allclose(mine[name], array, atol=tolerance, rtol=tolerance)


ATTENTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "window": {"local_window_size": 4},
    "soft cap": {"softcap": 1.5},
    "rotary": {"do_rotary": 1},
    "interleaved rotary": {"do_rotary": 1, "rotary_interleaved": 1},
    "partial rotary": {"do_rotary": 1, "partial": True},
    "partial interleaved": {"do_rotary": 1, "rotary_interleaved": 1, "partial": True},
    "sinks": {"sinks": True},
    "sinks in a window": {"sinks": True, "local_window_size": 3, "softcap": 2.0},
    "packed": {"packed": True, "do_rotary": 1},
    "no groups": {"num_kv_heads": HEADS, "do_rotary": 1},
}


@pytest.mark.parametrize("num_past", [0, NUM_PAST])
@pytest.mark.parametrize("is_single_token", [False, True], ids=["many tokens", "one token"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(fused, name, is_single_token, num_past):
    """GroupQueryAttention takes a prompt of several rows only where nothing is past."""
    options = dict(ATTENTIONS[name])
    kv_heads = options.pop("num_kv_heads", KV_HEADS)
    one = fused(is_single_token=is_single_token)
    if num_past and not is_single_token:
        one.feeds["input_ids"] = one.feeds["input_ids"][:1]
    rows, num_new = one.feeds["input_ids"].shape
    widths = [heads * HEAD_DIM for heads in (HEADS, kv_heads, kv_heads)]
    if options.pop("packed", False):
        parts = [one.input("qkv", one.random(rows, num_new, sum(widths))), None, None]
    else:
        parts = [
            one.input(n, one.random(rows, num_new, w)) for n, w in zip("qkv", widths, strict=True)
        ]
    size = ("batch", kv_heads, "capacity", HEAD_DIM)
    past = [
        one.input(
            f"past_key_values.0.{side}", one.random(rows, kv_heads, num_past, HEAD_DIM), *size
        )
        for side in ("key", "value")
    ]
    total = num_past + num_new
    lengths = [
        one.input("seqlens_k", np.full(rows, total - 1, np.int32)),
        one.input("total_sequence_length", np.array(total, np.int32)),
    ]
    tables = [None, None]
    half = HEAD_DIM // 4 if options.pop("partial", False) else HEAD_DIM // 2
    if "do_rotary" in options:
        angles = one.random(64, half)
        tables = [one.stored(np.cos(angles)), one.stored(np.sin(angles))]
        one.feeds["position_ids"] = np.tile(np.arange(num_past, total), (rows, 1))
    sinks = [None, None, one.stored(one.random(HEADS))] if options.pop("sinks", False) else []
    theirs, mine, model = one.run(
        "GroupQueryAttention",
        [*parts, *past, *lengths, *tables, *sinks],
        ["attended", "present.0.key", "present.0.value"],
        num_heads=HEADS,
        kv_num_heads=kv_heads,
        **options,
    )
    check(theirs, mine)
    inputs = {value.name: value for value in model.graph.inputs}
    assert "seqlens_k" not in inputs
    assert ("position_ids" in inputs) is ("do_rotary" in options)
    assert list(inputs["past_key_values.0.key"].shape)[2] == "past"
    assert list(model.graph.outputs[1].shape or []) in ([], ["batch", kv_heads, "total", HEAD_DIM])


def test_attention_of_another_kind_is_refused(fused):
    one = fused()
    parts = [
        one.input(n, one.random(2, NUM_NEW, w)) for n, w in zip("qkv", (192, 64, 64), strict=True)
    ]
    past = [
        one.input(f"past_key_values.0.{side}", one.random(2, 2, 0, 32), "batch", 2, "capacity", 32)
        for side in ("key", "value")
    ]
    lengths = [
        one.input("seqlens_k", np.full(2, NUM_NEW - 1, np.int32)),
        one.input("total_sequence_length", np.array(NUM_NEW, np.int32)),
    ]
    with pytest.raises(ExportError, match="uses smooth_softmax of GroupQueryAttention"):
        one.run(
            "GroupQueryAttention",
            [*parts, *past, *lengths],
            ["attended", "present.0.key", "present.0.value"],
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            smooth_softmax=1,
        )


def test_norms(fused):
    one = fused()
    states, gain = one.input("x", one.random(2, 5, 64)), one.stored(one.random(64))
    attributes = {"axis": -1, "epsilon": 1e-3, "stash_type": 1}
    theirs, mine, _ = one.run(
        "SimplifiedLayerNormalization", [states, gain], ["y"], "", **attributes
    )
    check(theirs, mine)


@pytest.mark.parametrize("has_bias", [False, True])
def test_residual_rms_norms(fused, has_bias):
    one = fused()
    states, skip = one.input("x", one.random(2, 5, 64)), one.input("skip", one.random(2, 5, 64))
    rest = [one.stored(one.random(64)) for _ in range(1 + has_bias)]
    theirs, mine, _ = one.run(
        "SkipSimplifiedLayerNormalization",
        [states, skip, *rest],
        ["y", "", "", "sum"],
        epsilon=1e-3,
    )
    check(theirs, mine)


def test_residual_norms(fused):
    one = fused()
    states, skip = one.input("x", one.random(2, 5, 64)), one.input("skip", one.random(2, 5, 64))
    rest = [one.stored(one.random(64)) for _ in range(3)]  # gain, shift and bias
    theirs, mine, _ = one.run(
        "SkipLayerNormalization", [states, skip, *rest], ["y", "", "", "sum"], epsilon=1e-3
    )
    check(theirs, mine)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [2, HEAD_DIM // 2])
def test_rotations_before_attention(fused, half, interleaved):
    one = fused()
    rows, num_new = one.feeds["input_ids"].shape
    positions = np.arange(rows * num_new).reshape(rows, num_new)
    size = ("batch", "sequence", HEADS * HEAD_DIM)
    states = one.input("x", one.random(rows, num_new, size[2]), *size)
    angles = one.random(64, half)
    tables = [one.stored(np.cos(angles)), one.stored(np.sin(angles))]
    theirs, mine, _ = one.run(
        "RotaryEmbedding",
        [states, one.input("position_ids", positions), *tables],
        ["y"],
        num_heads=HEADS,
        interleaved=interleaved,
        rotary_embedding_dim=2 * half,
    )
    check(theirs, mine)


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_quick_gelu(fused, alpha):
    one = fused()
    theirs, mine, _ = one.run(
        "QuickGelu", [one.input("x", one.random(2, 5, 64))], ["y"], alpha=alpha
    )
    check(theirs, mine)


@pytest.mark.parametrize("op_type", ["Gelu", "BiasGelu", "FastGelu"])
def test_gelus(fused, op_type):
    one = fused()
    inputs = [one.input("x", one.random(2, 5, 64))]
    if op_type != "Gelu":
        inputs.append(one.stored(one.random(64)))
    theirs, mine, _ = one.run(op_type, inputs, ["y"])
    check(theirs, mine)


def test_a_tied_head_is_read_as_it_lies(fused):
    one = fused()
    inputs = [one.input("x", one.random(2, 5, 64)), one.stored(one.random(96, 64))]
    theirs, mine, model = one.run("FusedMatMul", inputs, ["y"], transB=1, alpha=0.5)
    check(theirs, mine)
    assert not any(node.op_type == "Transpose" for node in model.graph)


@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (1, 1)])
def test_turned_products(fused, left, right):
    one = fused()
    sides = [(2, 64, 5) if left else (2, 5, 64), (2, 96, 64) if right else (2, 64, 96)]
    inputs = [one.input(n, one.random(*size)) for n, size in zip("ab", sides, strict=True)]
    options = {"transA": left, "transB": right, "alpha": 0.5}
    theirs, mine, _ = one.run("FusedMatMul", inputs, ["y"], **options)
    check(theirs, mine)


@pytest.mark.parametrize("num_blocks", [2, 3])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_products_read_the_same_bytes(fused, bits, has_zeros, num_blocks):
    """Three blocks leave half a byte at the end of each row of 4-bit zero points."""
    one, num_in = fused(), num_blocks * BLOCK_SIZE
    made = quantise(one.random(65, num_in), Blocks(bits))
    inputs = [
        one.input("x", one.random(2, 5, num_in)),
        one.stored(made.values),
        one.stored(made.scales),
    ]
    if has_zeros:
        per_row = -(-num_blocks * bits // 8)
        inputs.append(one.stored(one.numbers.integers(0, 256, (65, per_row)).astype(np.uint8)))
    theirs, mine, model = one.run(
        "MatMulNBits", inputs, ["y"], K=num_in, N=65, bits=bits, block_size=BLOCK_SIZE
    )
    check(theirs, mine, 2e-4)
    node = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    mine_at, theirs_at = node.inputs[0].const_value, inputs[1].const_value
    assert (mine_at.offset, mine_at.length) == (theirs_at.offset, theirs_at.length)
    assert mine_at.nbytes == theirs_at.nbytes


@pytest.mark.parametrize("bits", [4, 8])
def test_columns_that_fill_no_whole_block(fused, bits):
    one = fused()
    made = quantise(one.random(64, 40), Blocks(bits, is_symmetric=bits == 8))
    parts = (made.values, made.scales, made.zero_points)
    inputs = [one.input("x", one.random(2, 5, 40))]
    inputs += [one.stored(part) for part in parts if part is not None]
    theirs, mine, _ = one.run(
        "MatMulNBits", inputs, ["y"], K=40, N=64, bits=bits, block_size=BLOCK_SIZE
    )
    check(theirs, mine, 2e-4)


@pytest.mark.parametrize("columns", [64, 96])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_embedding(fused, bits, columns):
    one = fused()
    made = quantise(one.random(50, columns), Blocks(bits, is_symmetric=bits == 8))
    values = one.stored(made.values.reshape(50, -1))
    inputs = [values, one.ids, one.stored(made.scales)]
    if made.zero_points is not None:
        inputs.append(one.stored(made.zero_points))
    theirs, mine, model = one.run(
        "GatherBlockQuantized",
        inputs,
        ["y"],
        gather_axis=0,
        quantize_axis=1,
        block_size=BLOCK_SIZE,
        bits=bits,
    )
    check(theirs, mine)
    assert values.const_value.name in model.graph.initializers  # gathered as it lies


def test_an_operator_without_a_plain_form_is_refused(fused):
    one = fused()
    with pytest.raises(ExportError, match=r"com\.microsoft::Inverse of this model has no form"):
        one.run("Inverse", [one.input("x", one.random(2, 5, 5))], ["y"])


def test_the_graph_is_declared_as_old_as_it_can_be(fused):
    one = fused()
    _, _, model = one.run("QuickGelu", [one.input("x", one.random(2, 5, 64))], ["y"], alpha=1.0)
    assert dict(model.graph.opset_imports) == {"": OPSET}
    assert {node.domain for node in model.graph} == {""}
