"""The judge of an export: figures that are right, and refusals that are deserved."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.bundle.manifest import SelfCheck, Verification
from twostroke.errors import ExportError
from twostroke_export.parity import Measured, divergence, judge
from twostroke_export.reference import Reference, evaluation_text


def reference(gap: float = 5.0) -> Reference:
    """Three steps over four tokens whose best two logits are `gap` apart."""
    steps = np.tile(np.array([0, 1, 2, 2 + gap], np.float32), (3, 1))
    return Reference([1], [3, 3], steps, [1, 3], steps[:2])


def measured(num_equal: int = 3, difference: float = 1e-5, kl: float | None = 1e-6) -> Measured:
    verification = Verification(
        num_steps=3,
        prefill_max_abs_diff=difference,
        decode_max_abs_diff=difference / 2,
        num_argmax_equal=num_equal,
        mean_kl=kl,
    )
    check = SelfCheck(prompt_ids=(1,), greedy_ids=(3,), top_ids=(3,), top_logits=(7.0,))
    return Measured(verification, check)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_an_equal_export_passes(precision):
    judge("mine", [precision], measured(), reference())


def test_fp32_must_choose_the_same_tokens():
    with pytest.raises(ExportError, match=r"same in 2 of 3 steps, logits differ by up to 0\.5"):
        judge("mine", ["fp32"], measured(num_equal=2, difference=0.5), reference())


def test_a_tie_may_fall_either_way():
    judge("mine", ["fp32"], measured(num_equal=2, difference=1e-4), reference(gap=1e-5))
    with pytest.raises(ExportError):
        judge("mine", ["fp32"], measured(num_equal=2, difference=1e-4), reference(gap=1.0))


def test_quantised_weights_may_choose_others():
    judge("mine", ["int8"], measured(num_equal=2, difference=0.5, kl=0.01), reference())


@pytest.mark.parametrize(
    ("precision", "kl"), [("fp32", 0.01), ("int8", 0.5), ("int4", 3.0), ("int8", float("nan"))]
)
def test_what_is_broken_rather_than_lossy_is_refused(precision, kl):
    with pytest.raises(ExportError, match=f"The {precision} export of mine does not agree"):
        judge("mine", [precision], measured(kl=kl), reference())


def test_divergence_by_its_definition():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.25, 0.25])
    expected = (p * np.log(p / q)).sum()
    logits = [np.log(x).astype(np.float32) + shift for x, shift in ((p, 3.0), (q, -200.0))]
    assert divergence(*logits) == pytest.approx(expected, rel=1e-5)
    assert divergence(logits[0], logits[0] + 1) == pytest.approx(0, abs=1e-6)


def test_divergence_of_large_logits_is_finite():
    assert np.isfinite(divergence(np.array([1e4, 0], np.float32), np.array([0, 1e4], np.float32)))


def test_the_text_is_long_enough_and_plain():
    text = evaluation_text()
    assert len(text.split()) > 512  # so every tokenizer makes at least as many tokens
    assert text.isascii()


def test_decode_is_judged_too():
    figures = measured()
    for decode_kl in (0.5, float("nan")):
        broken = Measured(figures.verification, figures.self_check, decode_kl)
        with pytest.raises(ExportError, match="The int8 export of mine does not agree"):
            judge("mine", ["int8"], broken, reference())
