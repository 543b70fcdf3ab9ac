from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.errors import ConfigError
from twostroke.life.config_shape import shape_of
from twostroke.life.forecast import Forecast
from twostroke.life.limits import DeviceLimits
from twostroke.life.subject import check_context, subject_of_shape

CONFIG = {
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 10,
}
LIMITS = DeviceLimits(1e9, 1e12, 4e12)
SUBJECT = subject_of_shape(
    "tiny", shape_of(CONFIG, "c"), "int8", kv_dtype=None, packs=True, shares=True
)


def forecast(**changes) -> Forecast:
    given = {
        "subject": SUBJECT,
        "context_tokens": 1024,
        "num_rows": 2,
        "memory_bytes": None,
        "limits": LIMITS,
        "chunk_tokens": 256,
        "keeps_scores": True,
    }
    return Forecast(**(given | changes))


def test_the_parts_are_the_whole():
    plan = forecast()
    told = plan.report()
    parts = ("weights_bytes", "kv_bytes", "workspace_bytes", "process_bytes")
    assert told["total_bytes"] == sum(told[part] for part in parts)
    assert told["kv_bytes"] == 2 * told["kv_bytes_per_row"] == 2 * 1032 * (2 * 2 * 2 * 16 * 4)
    assert told["scores_bytes"] == 4 * 256 * 1024 * 4
    json.dumps(told)


@given(st.integers(0, 3 * 10**8), st.integers(2, 4096), st.integers(1, 64))
def test_what_is_said_to_fit_fits_and_nothing_larger(memory, context, rows):
    plan = forecast(memory_bytes=memory, context_tokens=context, num_rows=rows)
    longest, most = plan.longest_context_tokens, plan.most_rows
    assert plan.fits == (context <= longest) == (rows <= most)
    for tokens, fits in ((longest, True), (longest + 1, False)):
        if 0 < tokens <= 4096:
            made = forecast(memory_bytes=memory, context_tokens=tokens, num_rows=rows)
            assert made.fits == fits
    for number, fits in ((most, True), (most + 1, False)):
        if 0 < number <= 1024:
            made = forecast(memory_bytes=memory, context_tokens=context, num_rows=number)
            assert made.fits == fits


def test_decode_is_bound_by_the_bytes_it_reads():
    plan = forecast()
    step = SUBJECT.weights.step_bytes
    cache = 2 * 2 * 16 * 4
    assert plan.decode_tokens_per_s(1, 1) == pytest.approx(1e9 / (step + 2 * cache))
    # One layer sees all of 100 tokens, the other its window of 10.
    assert plan.decode_tokens_per_s(3, 100) == pytest.approx(3e9 / (step + 3 * cache * 110))


def test_prefill_counts_each_pair_of_tokens_that_see_each_other():
    num_tokens = 25
    full = sum(n + 1 for n in range(num_tokens))
    window = sum(min(n + 1, 10) for n in range(num_tokens))
    layers = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 96)
    ops = 2 * layers * num_tokens + 4 * 4 * 16 * (full + window) + 2 * 64 * 1000
    assert SUBJECT.prefill_ops(num_tokens) == ops
    assert forecast().prefill_s(num_tokens) == ops / 4e12  # int8 weights are multiplied in int8


def test_without_limits_there_is_no_speed():
    plan = forecast(limits=DeviceLimits())
    assert plan.decode_tokens_per_s(1, 1) is None
    assert plan.prefill_s(10) is None


def test_half_the_cache_in_half_floats():
    halves = subject_of_shape(
        "tiny", shape_of(CONFIG, "c"), "fp16", kv_dtype=None, packs=True, shares=True
    )
    assert halves.kv_bytes_per_token * 2 == SUBJECT.kv_bytes_per_token
    apart = subject_of_shape(
        "tiny", shape_of(CONFIG, "c"), "fp16", kv_dtype="float32", packs=True, shares=False
    )
    assert apart.kv_bytes_per_token == SUBJECT.kv_bytes_per_token
    assert apart.loaded_bytes - halves.loaded_bytes == halves.weights.packed_bytes


def test_a_context_is_the_models_own_or_shorter():
    assert check_context(SUBJECT, None) == 4096
    assert check_context(SUBJECT, 7) == 7
    for wrong in (1, 4097):
        with pytest.raises(ConfigError, match="from 2 to 4096"):
            check_context(SUBJECT, wrong)
