"""What an export is asked for: what may go together, and the sentence for what may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twostroke.backends.hookspecs import ExportOptions
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.quantise import Blocks
from twostroke_export.recipe import Recipe, recipe_of


def recipe(**options: Any) -> Recipe:
    return recipe_of(ExportOptions("source", Path("out"), **options))


def test_a_stroke_may_have_a_precision_of_its_own() -> None:
    one = recipe(precision="int4")
    assert [one.precision(stroke) for stroke in Stroke] == ["int4", "int4"]
    two = recipe(prefill_precision="int8", decode_precision="int4")
    assert [two.precision(stroke) for stroke in Stroke] == ["int8", "int4"]
    assert [two.lowering(stroke).layers("any") for stroke in Stroke] == [8, 4]


def test_blocks_are_symmetric_at_eight_bits_unless_told() -> None:
    plain = recipe(precision="int4").lowering(Stroke.DECODE)
    assert plain.blocks(4) == Blocks(4, 32, is_symmetric=False)
    assert plain.blocks(8) == Blocks(8, 32, is_symmetric=True)
    told = recipe(precision="int4", block_size=128, is_symmetric=True, accuracy_level=4)
    assert told.lowering(Stroke.DECODE).blocks(4) == Blocks(4, 128, is_symmetric=True)
    zeros = recipe(is_symmetric=False, activations="fp16").lowering(Stroke.PREFILL)
    assert zeros.blocks(8) == Blocks(8, 32, is_symmetric=False, floats="float16")


@pytest.mark.parametrize(
    ("options", "floats", "cache"),
    [
        ({}, "float32", "float32"),
        ({"precision": "fp16"}, "float16", "float16"),
        ({"precision": "bf16"}, "bfloat16", "bfloat16"),
        ({"precision": "bf16", "activations": "bf16"}, "bfloat16", "bfloat16"),
        ({"activations": "bf16"}, "bfloat16", "bfloat16"),
        ({"activations": "fp16", "kv_dtype": "int8"}, "float16", "int8"),
        ({"prefill_precision": "fp16", "decode_precision": "int4"}, "float16", "float16"),
        ({"precision": "fp32", "kv_dtype": "int8"}, "float32", "int8"),
    ],
)
def test_both_graphs_compute_in_the_same_floats(
    options: dict[str, Any], floats: str, cache: str
) -> None:
    made = recipe(**options)
    assert (made.activations, made.kv_dtype) == (floats, cache)
    assert {made.lowering(stroke).floats for stroke in Stroke} == {floats}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"precision": "int3"},
            "'int3' is unknown; choose one of fp32, fp16, bf16, int8, int4, mixed",
        ),
        ({"decode_precision": "int3"}, "'int3' is unknown"),
        ({"block_size": 48}, "block size 48 is unknown; choose one of 16, 32, 64, 128, 256"),
        ({"accuracy_level": 2}, "accuracy level 2 is unknown; choose one of 0, 1, 4"),
        ({"precision": "fp32", "block_size": 64}, "--block-size is for quantised weights.*fp32"),
        ({"precision": "fp16", "is_symmetric": True}, "--symmetric or --asymmetric is for"),
        ({"activations": "fp8"}, "'fp8' are unknown; choose one of fp32, fp16, bf16"),
        (
            {"precision": "fp32", "activations": "fp16"},
            "but prefill is fp32, decode is fp32, the activations are fp16; make",
        ),
        (
            {"prefill_precision": "fp32", "decode_precision": "fp16"},
            "share one KV cache, but prefill is fp32, decode is fp16; make",
        ),
        ({"kv_dtype": "int4"}, "cache dtype 'int4' is unknown; choose auto .* or int8"),
        (
            {"kv_dtype": "int8", "dialects": ("fused", "standard")},
            "needs ONNX Runtime's own attention operator.*leave out --kv-dtype int8",
        ),
        ({"dialects": ("plain",)}, "'plain' is unknown"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        recipe(**options)
