"""Fractions of the possible, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from twostroke.bundle.manifest import KVLayer
from twostroke.life.chunks import PromptChunks
from twostroke.life.limits import DeviceLimits
from twostroke.life.roofline import Bounds, GraphCosts
from twostroke.life.steps import DecodeSteps
from twostroke.life.weights import Weights
from twostroke.types import Stroke

LAYERS = (KVLayer(num_kv_heads=2, head_dim=8),) * 2
KV_BYTES = 2 * 2 * 2 * 8 * 4  # a token: layers, sides, heads, head_dim, float32
PAIR_OPS = 2 * 4 * 4 * 8  # layers, 4, query heads, head_dim
WEIGHTS = Weights(step_bytes=10_000, num_multiplied=2_000, num_head=500)
LIMITS = DeviceLimits(read_bytes_per_s=1e5, fp32_ops_per_s=1e6, int8_ops_per_s=4e6)


def costs(**changes) -> GraphCosts:
    given = {
        "weights": WEIGHTS,
        "layers": LAYERS,
        "kv_dtype": "float32",
        "num_heads": 4,
        "precision": "fp32",
        "limits": LIMITS,
    }
    return GraphCosts(**(given | changes))


def chunks(*spans: tuple[int, int, float]) -> PromptChunks:
    read = PromptChunks()
    for start, num_tokens, busy_s in spans:
        read.add(start, num_tokens, 1.0, 1.0 + busy_s)
    return read


def steps(*each: tuple[int, float, int, int]) -> DecodeSteps:
    taken = DecodeSteps()
    for step in each:
        taken.add(*step)
    return taken


def test_decode_reads_the_weights_once_a_step_and_each_cache():
    found = costs().decode(steps((1, 0.5, 10, 10), (2, 0.5, 11, 31)))
    assert found is not None
    assert found.read_bytes == 2 * 10_000 + 41 * KV_BYTES
    assert found.own_read_bytes == 10_000 + 10_000 / 2 + 21 * KV_BYTES
    # Three rows in all; each token attends to those before it and to itself.
    assert found.ops == 3 * 2 * (2_000 + 500) + (41 + 3) * PAIR_OPS
    assert found.read_bytes_per_s == found.read_bytes
    assert found.fraction_of_bandwidth == pytest.approx((20_000 + 41 * KV_BYTES) / 1e5)
    assert found.fraction_of_peak == pytest.approx(found.ops / 1e6)
    assert found.bound_by == "bandwidth"


def test_drafted_tokens_are_computed_and_read_nothing_more():
    plain = costs().decode(steps((1, 0.5, 10, 10), (1, 0.5, 14, 14)))
    drafted = costs().decode(steps((1, 0.5, 10, 10), (1, 0.5, 14, 14)), num_drafted_tokens=5)
    assert plain is not None
    assert drafted is not None
    assert drafted.read_bytes == plain.read_bytes
    assert drafted.ops - plain.ops == 5 * (2 * (2_000 + 500) + (12 + 1) * PAIR_OPS)


def test_of_experts_a_step_reads_those_that_its_rows_are_likely_to_choose():
    experts = Weights(step_bytes=1_000, expert_bytes=8_000, expert_step_bytes=2_000)
    found = costs(weights=experts).decode(steps((1, 1.0, 0, 0), (2, 1.0, 0, 0)))
    assert found is not None
    # One row touches 1/4 of them, two rows 1 - (3/4)^2.
    assert found.read_bytes == pytest.approx((1_000 + 2_000) + (1_000 + 8_000 * 7 / 16))
    assert found.own_read_bytes == pytest.approx(3_000 + (1_000 + 8_000 * 7 / 16) / 2)


def test_prefill_computes_each_token_and_each_pair_that_sees_each_other():
    found = costs().prefill(chunks((0, 16, 0.25), (16, 4, 0.25)))
    assert found is not None
    pairs = 20 * 21 // 2
    assert found.ops == 2 * 2_000 * 20 + 2 * 2 * 500 + pairs * PAIR_OPS
    assert found.read_bytes == 2 * 10_000 + 16 * KV_BYTES
    assert found.ops_per_s == found.ops / 0.5
    assert found.fraction_of_peak == pytest.approx(found.ops / 0.5 / 1e6)
    assert found.bound_by == "bandwidth"


def test_a_cached_prefix_is_attended_to_and_not_computed():
    alone = costs().prefill(chunks((0, 4, 1.0)))
    behind = costs().prefill(chunks((100, 4, 1.0)))
    assert alone is not None
    assert behind is not None
    assert behind.ops - alone.ops == 100 * 4 * PAIR_OPS
    assert behind.read_bytes - alone.read_bytes == 100 * KV_BYTES


def test_many_equal_chunks_are_counted_as_if_each_were_kept():
    spans = [(start, 8, 0.25) for start in range(0, 8 * 50, 8)]
    found = costs().prefill(chunks(*spans))
    assert found is not None
    assert found.read_bytes == 50 * 10_000 + sum(start for start, _, _ in spans) * KV_BYTES
    assert found.ops == 2 * 2_000 * 400 + 50 * 2 * 500 + 400 * 401 // 2 * PAIR_OPS


def test_the_peak_is_that_of_the_precision():
    read = chunks((0, 200, 0.1))
    fp32, int8 = costs().prefill(read), costs(precision="int8").prefill(read)
    assert fp32 is not None
    assert int8 is not None
    assert fp32.fraction_of_peak == pytest.approx(4 * (int8.fraction_of_peak or 0))
    assert fp32.bound_by == "compute"
    assert costs(precision="mixed").prefill(read) == int8


def test_without_limits_there_are_rates_and_no_fractions():
    found = costs(limits=DeviceLimits()).decode(steps((1, 0.5, 10, 10)))
    assert found is not None
    assert found.read_bytes_per_s > 0
    assert (found.fraction_of_bandwidth, found.fraction_of_peak, found.bound_by) == (None,) * 3


def test_what_took_no_time_has_no_roofline():
    bounds = Bounds({Stroke.PREFILL: costs(), Stroke.DECODE: costs()})
    found = bounds.roofline(PromptChunks(), steps((1, 0.0, 3, 3)))
    assert (found.prefill, found.decode, found.reason) == (None, None, None)


def test_without_costs_there_is_a_reason():
    found = Bounds({}, "no ONNX files").roofline(PromptChunks(), DecodeSteps())
    assert (found.prefill, found.decode, found.reason) == (None, None, "no ONNX files")
