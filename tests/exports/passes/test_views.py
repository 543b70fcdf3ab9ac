"""Views that move no number: constant targets, pieces put together again, transposes, flat rows."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke_export.passes.rejoin import rejoin
from twostroke_export.passes.simplify import remove_cancelling_views
from twostroke_export.passes.sink_transpose import sink_transposes
from twostroke_export.passes.static_reshape import fix_reshapes
from twostroke_export.passes.unflatten import unflatten

RANDOM = np.random.default_rng(0)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("source", "target", "parts", "expected"),
    [
        ("batch, sequence, 32", "batch, sequence, 4, 8", "n, m, k4, k8", [0, 0, 4, 8]),
        ("batch, sequence, 4, 8", "batch, sequence, 32", "n, m, k32", [0, 0, 32]),
        ("batch, 1, 32", "batch, 4, 8", "n, k4, k8", [0, 4, 8]),
        ("1, batch, 32", "batch, 4, 8", "n, k4, k8", [-1, 4, 8]),
    ],
)
def test_a_target_becomes_constant(parse, keeps_numbers, source, target, parts, expected):
    batch_axis = 1 if source.startswith("1") else 0
    model = parse(
        f"""(float[{source}] x) => (float[{target}] y) {{
            n = Shape <start = {batch_axis}, end = {batch_axis + 1}>(x)
            m = Shape <start = 1, end = 2>(x)
            s = Concat <axis = 0>({parts})
            y = Reshape <allowzero = 1>(x, s)
        }}""",
        k4=numbers(4),
        k8=numbers(8),
        k32=numbers(32),
    )
    assert keeps_numbers(model, fix_reshapes) == (1, ["Reshape"])
    assert model.graph[0].inputs[1].const_value.numpy().tolist() == expected


def test_two_free_sizes_that_move_stay_computed(parse, keeps_numbers):
    model = parse(
        """(float[batch, sequence, 8] x) => (float[sequence, batch, 8] y) {
            n = Shape <start = 0, end = 1>(x)
            m = Shape <start = 1, end = 2>(x)
            s = Concat <axis = 0>(m, n, k8)
            y = Reshape(x, s)
        }""",
        k8=numbers(8),
    )
    assert keeps_numbers(model, fix_reshapes)[0] == 0


def pieces(*bounds: tuple[int, int]) -> tuple[str, dict[str, np.ndarray]]:
    """Slices of 16 channels, joined again."""
    names = [f"p{number}" for number in range(len(bounds))]
    slices = " ".join(f"{name} = Slice(x, {name}s, {name}e, last)" for name in names)
    graph = f"""(float[batch, 16] x) => (float[batch, width] y)
        {{ {slices} t = Concat <axis = -1>({", ".join(names)}) y = Exp(t) }}"""
    stored = {"last": numbers(1)}
    for name, (start, end) in zip(names, bounds, strict=True):
        stored |= {f"{name}s": numbers(start), f"{name}e": numbers(end)}
    return graph, stored


@pytest.mark.parametrize(
    "bounds",
    [[(0, 4), (4, 2**63 - 1)], [(0, 4), (4, -8), (-8, 16)], [(0, 16)]],
)
def test_pieces_in_order_are_the_whole(parse, keeps_numbers, bounds):
    graph, stored = pieces(*bounds)
    assert keeps_numbers(parse(graph, **stored), rejoin) == (1, ["Exp"])


@pytest.mark.parametrize(
    "bounds",
    [[(4, 16), (0, 4)], [(0, 4), (5, 16)], [(0, 4), (4, 12)], [(0, 8), (4, 16)], [(4, 16)]],
    ids=["turned", "gap", "short", "overlapping", "late"],
)
def test_other_joins_stay(parse, keeps_numbers, bounds):
    graph, stored = pieces(*bounds)
    assert keeps_numbers(parse(graph, **stored), rejoin)[0] == 0


def test_parts_of_a_split_are_the_whole(parse, keeps_numbers):
    model = parse(
        """(float[batch, 16] x) => (float[batch, 16] y) {
            p, q = Split <axis = -1>(x, sizes)
            t = Concat <axis = 1>(p, q)
            y = Exp(t)
        }""",
        sizes=numbers(4, 12),
    )
    assert keeps_numbers(model, rejoin) == (1, ["Exp"])


def test_parts_of_two_values_are_no_whole(parse, keeps_numbers):
    model = parse(
        """(float[batch, 16] x, float[batch, 16] z) => (float[batch, 16] y) {
            p, q = Split <axis = -1>(x, sizes)
            r, s = Split <axis = -1>(z, sizes)
            y_ = Concat <axis = -1>(p, s)
            y = Exp(y_)
        }""",
        sizes=numbers(4, 12),
    )
    assert keeps_numbers(model, rejoin)[0] == 0


def sink_and_cancel(graph) -> int:
    count = sink_transposes(graph)
    remove_cancelling_views(graph)
    return count


def test_transposes_around_a_norm_of_heads_cancel(parse, keeps_numbers):
    model = parse(
        """(float[batch, sequence, 4, 8] x) => (float[batch, sequence, 4, 8] y) {
            t = Transpose <perm = [0, 2, 1, 3]>(x)
            n = LayerNormalization <axis = -1>(t, w)
            u = Transpose <perm = [0, 2, 1, 3]>(n)
            y = Exp(u)
        }""",
        w=RANDOM.standard_normal(8).astype(np.float32),
    )
    assert keeps_numbers(model, sink_and_cancel) == (1, ["LayerNormalization", "Exp"])
    assert str(model.graph[0].outputs[0].shape) == "[batch,sequence,4,8]"


def test_transposes_around_a_split_cancel(parse, keeps_numbers):
    model = parse(
        """(float[batch, sequence, 4, 8] x) =>
        (float[batch, sequence, 4, 6] y, float[batch, 4, sequence, 2] z) {
            t = Transpose <perm = [0, 2, 1, 3]>(x)
            p, q = Split <axis = 3>(t, sizes)
            u = Transpose <perm = [0, 2, 1, 3]>(p)
            y = Exp(u)
            z = Exp(q)
        }""",
        sizes=numbers(6, 2),
    )
    count, operators = keeps_numbers(model, sink_and_cancel)
    assert count == 1
    assert sorted(operators) == ["Exp", "Exp", "Split", "Transpose"]


@pytest.mark.parametrize(
    ("perm", "norm"),
    [
        ("0, 2, 3, 1", "LayerNormalization <axis = -1>(t, w)"),  # other rows than before
        ("0, 2, 1, 3", "LayerNormalization <axis = 2>(t, w)"),  # over two axes
        ("0, 2, 1, 3", "Softmax <axis = 1>(t)"),
    ],
)
def test_a_transpose_that_matters_stays(parse, keeps_numbers, perm, norm):
    model = parse(
        f"""(float[batch, 8, 8, 8] x) => (float[batch, 8, 8, 8] y) {{
            t = Transpose <perm = [{perm}]>(x)
            n = {norm}
            y = Exp(n)
        }}""",
        w=RANDOM.standard_normal(8).astype(np.float32),
    )
    assert keeps_numbers(model, sink_transposes)[0] == 0


FEED_FORWARD = """(float[batch, sequence, 32] x) => (float[batch, sequence, 32] y)
    <float[rows, 32] f, float[rows, 64] h, float[rows, 64] a, float[rows, 32] d,
     float[rows, 32] n, float[rows, 32] t, float[batch, sequence, 32] u> {{
        f = Reshape(x, flat)
        n = LayerNormalization <axis = -1>(f, g, c)
        h = Gemm <transB = 1>(n, up, b)
        a = Relu(h)
        d = Gemm(a, down, c)
        t = Add({sum})
        s = Shape <start = 0, end = 2>(x)
        s3 = Concat <axis = 0>(s, k32)
        u = Reshape(t, s3)
        y = Exp(u)
    }}"""
MATRICES = {
    "up": RANDOM.standard_normal((64, 32)).astype(np.float32) / 8,
    "down": RANDOM.standard_normal((64, 32)).astype(np.float32) / 8,
    "b": RANDOM.standard_normal(64).astype(np.float32),
    "c": RANDOM.standard_normal(32).astype(np.float32),
    "g": RANDOM.standard_normal(32).astype(np.float32),
    "flat": numbers(-1, 32),
    "k32": numbers(32),
}


@pytest.mark.parametrize("terms", ["f, d", "d, c"])
def test_products_of_flat_rows_keep_their_axes(parse, keeps_numbers, terms):
    model = parse(FEED_FORWARD.format(sum=terms), **MATRICES)
    count, operators = keeps_numbers(model, unflatten)
    assert count == 1
    assert operators == [
        "LayerNormalization",
        "Transpose",
        "MatMul",
        "Add",
        "Relu",
        "MatMul",
        "Add",
        "Add",
        "Exp",
    ]
    assert str(model.graph[5].outputs[0].shape) == "[batch,sequence,32]"


def test_flat_rows_that_another_reads_stay(parse, keeps_numbers):
    text = FEED_FORWARD.format(sum="d, h2").replace("t = Add", "h2 = Gemm(h, down) t = Add")
    assert keeps_numbers(parse(text, **MATRICES), unflatten)[0] == 0


def test_flat_rows_through_another_operator_stay(parse, keeps_numbers):
    text = FEED_FORWARD.format(sum="f, d").replace("a = Relu(h)", "a = Softmax <axis = 0>(h)")
    assert keeps_numbers(parse(text, **MATRICES), unflatten)[0] == 0
