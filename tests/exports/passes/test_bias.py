"""Biases that a quantised product, a GELU or a residual norm takes over."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke_export.passes.bias import fuse_bias

RANDOM = np.random.default_rng(0)
GAIN, BETA, BIAS, OTHER = RANDOM.standard_normal((4, 32)).astype(np.float32)
VALUES = RANDOM.integers(0, 255, (32, 1, 32), np.uint8)
SCALES = RANDOM.random((32,), np.float32) / 100


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_product_takes_its_bias(parse, keeps_numbers, bits):
    model = parse(
        f"""(float[batch, sequence, 32] x) => (float[batch, sequence, 32] y)
        <float[batch, sequence, 32] p> {{
            p = com.microsoft.MatMulNBits
                <K = 32, N = 32, bits = {bits}, block_size = 32, accuracy_level = 4>(x, v, s)
            y = Add(p, b)
        }}""",
        v=VALUES[:, :, : 4 * bits],
        s=SCALES,
        b=BIAS,
    )
    assert keeps_numbers(model, fuse_bias) == (1, ["MatMulNBits"])
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    ("kind", "fused"), [("", "BiasGelu"), ('<approximate = "tanh">', "FastGelu")]
)
def test_a_gelu_takes_the_bias_before_it(parse, keeps_numbers, kind, fused):
    model = parse(
        f"""(float[batch, sequence, 32] x) => (float[batch, sequence, 32] y)
        {{ t = Add(b, x) y = Gelu {kind}(t) }}""",
        b=BIAS,
    )
    assert keeps_numbers(model, fuse_bias) == (1, [fused])


RESIDUAL = """(float[batch, sequence, 32] x, float[batch, sequence, 32] r)
    => (float[batch, sequence, 32] y, float[batch, sequence, 32] z)
    <float[batch, sequence, 32] y, float[batch, sequence, 32] z> {{
        t = Add(x, b)
        {more}
        y, m, i, z = com.microsoft.{norm} <epsilon = 1e-5>({terms}, g{beta})
    }}"""
NORMS = [("SkipLayerNormalization", ", e"), ("SkipSimplifiedLayerNormalization", "")]


@pytest.mark.parametrize(("norm", "beta"), NORMS)
@pytest.mark.parametrize("terms", ["t, r", "r, t"])
def test_a_residual_norm_takes_the_bias_of_either_term(parse, keeps_numbers, norm, beta, terms):
    text = RESIDUAL.format(norm=norm, beta=beta, terms=terms, more="")
    stored = {"b": BIAS, "g": GAIN} | ({"e": BETA} if beta else {})
    assert keeps_numbers(parse(text, **stored), fuse_bias) == (1, [norm])


@pytest.mark.parametrize(("norm", "beta"), NORMS)
def test_one_of_two_biases_stays(parse, keeps_numbers, norm, beta):
    text = RESIDUAL.format(norm=norm, beta=beta, terms="t, u", more="u = Add(r, o)")
    stored = {"b": BIAS, "g": GAIN, "o": OTHER} | ({"e": BETA} if beta else {})
    assert keeps_numbers(parse(text, **stored), fuse_bias) == (1, ["Add", norm])


@pytest.mark.parametrize(
    "body",
    [
        "t = Add(x, b) y = Gelu(t) z = Exp(t)",  # another reads the sum
        "t = Add(x, s) y = Gelu(t) z = Exp(x)",  # one number for all channels
        "t = Add(x, b) y = Erf(t) z = Exp(x)",  # no operator that takes it
    ],
)
def test_what_has_to_stay_stays(parse, keeps_numbers, body):
    model = parse(
        f"""(float[batch, sequence, 32] x) =>
        (float[batch, sequence, 32] y, float[batch, sequence, 32] z) {{ {body} }}""",
        b=BIAS,
        s=np.float32([0.5]),
    )
    count, operators = keeps_numbers(model, fuse_bias)
    assert (count, operators[0]) == (0, "Add")
