"""What weights take: estimated before, counted after, shared where both strokes read them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twostroke.bundle import open_bundle
from twostroke_export.footprint import Footprint, estimate, footprint
from twostroke_export.load import Loaded
from twostroke_export.pipeline import export_recipes
from twostroke_export.precision import lowering
from twostroke_export.prepare import Prepared
from twostroke_export.quantise import Blocks
from twostroke_export.recipe import Recipe
from twostroke_export.write import tell_of_weights


def test_what_both_read_counts_once():
    found = footprint({"a": 5, "b": 7}, {"b": 7, "c": 11})
    assert found == Footprint(12, 18, 7)
    assert found.total_bytes == 23


class TinyModel(torch.nn.Module):
    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 64)
        self.positions = torch.nn.Embedding(50, 64)
        self.layer = torch.nn.Linear(64, 96)
        self.router = torch.nn.Linear(64, 4, bias=False)
        self.experts = torch.nn.Parameter(torch.zeros(3, 40, 64))
        self.head = torch.nn.Linear(64, 100, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_estimate_of_each_kind_of_parameter(is_tied):
    model = TinyModel(is_tied=is_tied)
    floats = 50 * 64 + 96 + 4 * 64  # what no precision quantises
    tables = 1 if is_tied else 2
    quantised = (100 * 64 * tables, 64 * 96, 3 * 40 * 64)
    in_fp32 = sum(estimate(model, lowering("fp32")).values())
    assert in_fp32 == 4 * (floats + sum(quantised))
    assert sum(estimate(model, lowering("fp16", floats="float16")).values()) == in_fp32 // 2
    eight, four = Blocks(8), Blocks(4, is_symmetric=False)
    in_int4 = sum(estimate(model, lowering("int4")).values())
    assert in_int4 == (
        4 * floats
        + tables * eight.num_bytes(100, 64)
        + four.num_bytes(96, 64)
        + four.num_bytes(120, 64)
    )


def test_an_embedding_that_stays_a_float_is_counted_beside_its_head():
    in_blocks = estimate(TinyModel(is_tied=True), lowering("int8", block_size=128))
    assert 100 * 64 * 4 in in_blocks.values()
    assert Blocks(8, 128).num_bytes(100, 64) in in_blocks.values()


def test_a_bundle_tells_what_each_stroke_reads_and_the_log_said_so_before(
    tiny_llama, tmp_path, caplog
):
    out = tmp_path / "out"
    export_recipes(str(tiny_llama), {out: Recipe("int8", "int4")})
    manifest = open_bundle(out).manifest
    assert manifest.precision == "int8/int4"
    prefill, decode = manifest.graphs
    assert prefill.quantisation.is_symmetric is True
    assert decode.quantisation.is_symmetric is False
    assert prefill.weight_bytes > decode.weight_bytes > prefill.shared_weight_bytes
    # Head, embedding and rotary caches are the same bytes in both.
    assert prefill.shared_weight_bytes == decode.shared_weight_bytes > Blocks(8).num_bytes(320, 64)
    total = prefill.weight_bytes + decode.weight_bytes - prefill.shared_weight_bytes
    size = manifest.files["weights.bin"].num_bytes
    assert total <= size < total + 64 * 4096  # and the gaps between pages
    (record,) = (r for r in caplog.records if "two precisions" in r.message)
    assert "of int8 weights and decode" in record.message
    assert "int8 for both strokes would take" in record.message
    figures = manifest.verification
    assert figures.num_argmax_equal >= 1
    assert np.isfinite(figures.mean_kl)


def test_an_embedding_that_must_stay_a_float_is_told_of(caplog):
    loaded = Loaded(TinyModel(is_tied=True), None)
    prepared = Prepared(None, loaded, None, None, 8)
    tell_of_weights(prepared, Recipe())
    tell_of_weights(prepared, Recipe("fp32", "fp32", block_size=128))
    assert not caplog.records
    tell_of_weights(prepared, Recipe(block_size=128))
    assert "the embedding stays in floats (25.6 kB): its 64 columns do not make" in caplog.text


def test_slow_products_are_told_of(caplog):
    prepared = Prepared(None, Loaded(TinyModel(is_tied=True), None), None, None, 8)
    tell_of_weights(prepared, Recipe("fp32", "fp32", accuracy_level=0))
    assert not caplog.records
    tell_of_weights(prepared, Recipe("int8", "int8", accuracy_level=0))
    assert "accuracy level 0 multiplies in floats: on the CPU" in caplog.text


def test_what_is_mixed_later_is_bounded_before(caplog):
    prepared = Prepared(None, Loaded(TinyModel(is_tied=True), None), None, None, 8)
    tell_of_weights(prepared, Recipe("int8", "mixed"))
    assert "prefill reads at most" in caplog.text
