"""Attention fed by what the model packs itself, and by a query that is scaled before it."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke_export.passes.attention_scale import fold_query_scale
from twostroke_export.passes.packed_attention import feed_packed
from twostroke_export.passes.sort_heads import sort_heads

RANDOM = np.random.default_rng(0)
SEQUENCE, HEADS, KV_HEADS, HEAD_DIM = 3, 4, 2, 16
CACHE = "float[batch, 2, 8, 16]"
HEADER = f"""(float[batch, sequence, 64] x, {CACHE} pk, {CACHE} pv, int32[batch] lengths,
    int32 total) => (float[batch, sequence, 64] y, {CACHE} k_, {CACHE} v_)"""
ATTEND = """y, k_, v_ = com.microsoft.GroupQueryAttention
    <num_heads = 4, kv_num_heads = 2, scale = 0.25>({sides}, pk, pv, lengths, total{more})"""
FEEDS = {
    "lengths": np.full(2, SEQUENCE - 1, np.int32),
    "total": np.array(SEQUENCE, np.int32),
}
PROJECTION = RANDOM.standard_normal((64, 128)).astype(np.float32) / 8


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def packed(parse, *, order: str = "q, k, v", more: str = "", sizes=(64, 32, 32)):
    body = f"""p = MatMul(x, w) q, k, v = Split <axis = -1>(p, sizes)
        {ATTEND.format(sides=order, more=more)}"""
    shapes = ", ".join(
        f"float[batch, sequence, {n}] {s}" for n, s in zip(sizes, "qkv", strict=True)
    )
    return parse(f"{HEADER} <{shapes}> {{ {body} }}", w=PROJECTION, sizes=numbers(*sizes))


def test_reads_what_was_packed(parse, keeps_numbers):
    model = packed(parse)
    operators = ["MatMul", "GroupQueryAttention"]
    assert keeps_numbers(model, feed_packed, **FEEDS) == (1, operators)


@pytest.mark.parametrize("changes", [{"order": "q, v, k"}, {"more": ", , , positions"}])
def test_another_order_or_an_optional_input_keeps_the_split(parse, keeps_numbers, changes):
    model = packed(parse, **changes)
    if "more" in changes:  # the CPU's kernel refuses it; the pass must not even look
        assert feed_packed(model.graph) == 0
    else:
        assert keeps_numbers(model, feed_packed, **FEEDS)[0] == 0


@pytest.mark.parametrize("text", ["q = Mul(t, half)", "q = Mul(half, t)"])
def test_the_scale_of_the_query_is_folded(parse, keeps_numbers, text):
    model = parse(
        f"""{HEADER} {{ t = Identity(x) k = MatMul(x, w) {text}
        {ATTEND.format(sides="q, k, k", more="")} }}""",
        w=PROJECTION[:, :32],
        half=np.float32(0.5),
    )
    operators = ["Identity", "MatMul", "GroupQueryAttention"]
    assert keeps_numbers(model, fold_query_scale, **FEEDS) == (1, operators)
    assert model.graph[-1].attributes["scale"].as_float() == 0.125


@pytest.mark.parametrize("factor", [np.linspace(0, 1, 64, dtype=np.float32), None])
def test_other_products_of_the_query_stay(parse, keeps_numbers, factor):
    stored = {"w": PROJECTION[:, :32]} | ({"f": factor} if factor is not None else {})
    model = parse(
        f"""{HEADER} {{ k = MatMul(x, w) q = Mul(x, {"x" if factor is None else "f"})
        {ATTEND.format(sides="q, k, k", more="")} }}""",
        **stored,
    )
    assert keeps_numbers(model, fold_query_scale, **FEEDS)[0] == 0


def by_head(parse, *, sizes=(16, 16, 16), reads: str = "q"):
    """A product whose channels are [heads, parts], as GPT-NeoX has them."""
    width = sum(sizes)
    flat = " ".join(
        f"{name} = Reshape({name}_, f{size})" for name, size in zip("qkv", sizes, strict=True)
    )
    return parse(
        f"""(float[batch, sequence, 64] x) => (float[batch, sequence, a] y,
        float[batch, sequence, b] z, float[batch, sequence, c] u, float[batch, 4, c2] r) {{
            p = MatMul(x, w)
            b = Add(p, bias)
            h = Reshape(b, heads)
            q_, k_, v_ = Split <axis = -1>(h, sizes)
            {flat}
            y = MatMul(q, head) z = Exp(k) u = Exp(v)
            r = Reshape({reads}, rest)
        }}""",
        w=RANDOM.standard_normal((64, 4 * width)).astype(np.float32) / 8,
        bias=RANDOM.standard_normal(4 * width).astype(np.float32),
        head=RANDOM.standard_normal((4 * sizes[0], 32)).astype(np.float32) / 8,
        heads=numbers(0, 0, 4, width),
        sizes=numbers(*sizes),
        rest=numbers(2, 4, -1),
        **{f"f{size}": numbers(0, 0, 4 * size) for size in sizes},
    )


@pytest.mark.parametrize("sizes", [(16, 16, 16), (24, 8, 16)])
def test_channels_are_sorted_by_part(parse, keeps_numbers, sizes):
    count, operators = keeps_numbers(by_head(parse, sizes=sizes), sort_heads)
    assert count == 1
    assert operators[:4] == ["Transpose", "MatMul", "Add", "Split"]
    assert operators.count("Reshape") == 1  # the one behind


@pytest.mark.parametrize("reads", ["b", "h", "q_"])
def test_heads_that_another_reads_stay(parse, keeps_numbers, reads):
    assert keeps_numbers(by_head(parse, reads=reads), sort_heads)[0] == 0
