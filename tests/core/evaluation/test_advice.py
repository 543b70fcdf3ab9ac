"""The hint: the fastest bundle that loses little."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.bundle import Bundle
from twostroke.bundle.manifest import (
    Architecture,
    Evaluation,
    KVLayer,
    Manifest,
    Quantisation,
    both_strokes,
)
from twostroke.cli.quality_table import as_json, quality_table
from twostroke.evaluation import Evaluated
from twostroke.evaluation.advice import advise


def evaluated(
    precision: str,
    decode_ms: float | None,
    perplexity: float = 20.0,
    kl: float | None = None,
    top1: float | None = None,
) -> Evaluated:
    manifest = Manifest(
        name="m",
        architecture=Architecture(
            model_type="llama",
            num_layers=1,
            hidden_size=8,
            num_heads=2,
            vocab_size=16,
            num_parameters=100,
        ),
        context_tokens=32,
        kv_layers=(KVLayer(num_kv_heads=1, head_dim=4),),
        graphs=both_strokes(Quantisation(precision=precision)),
    )
    figures = Evaluation(
        text="book.txt",
        text_sha256="0" * 64,
        num_tokens=2047,
        window_tokens=512,
        backend="cpu",
        perplexity=perplexity,
        source=None if kl is None else "m fp32",
        source_perplexity=None if kl is None else 19.9,
        mean_kl=kl,
        top1_agreement=top1,
    )
    return Evaluated(Bundle(Path(f"/b/m-{precision}"), manifest), figures, decode_ms)


FP32 = evaluated("fp32", 30, 20.0, 0.0, 1.0)
INT8 = evaluated("int8", 12, 20.1, 0.005, 0.96)
INT4 = evaluated("int4", 9, 24.0, 0.2, 0.75)


def test_the_fastest_that_stays_near_its_source():
    assert advise([FP32, INT8, INT4]) == (
        "take int8 (m-int8): the fastest of those that stay near the source; int4 (m-int4) is "
        "faster and pays for it in quality"
    )
    assert advise([FP32, INT8]).endswith("stay near the source")


def test_where_none_is_near():
    assert advise([INT4]).startswith("none of these stays near its source")


def test_without_a_source_the_best_perplexity_is_the_measure():
    found = [evaluated("fp32", 30, 20.0), evaluated("int8", 12, 20.3), evaluated("int4", 9, 25.0)]
    assert advise(found).startswith("take int8 (m-int8)")
    assert advise(found[:1]).startswith("name a --source, or other bundles")


@pytest.mark.parametrize("ms", [None, 30])
def test_a_bundle_that_was_not_timed_is_not_taken_for_fast(ms):
    found = [INT8, evaluated("fp32", ms, 20.0, 0.0, 1.0)]
    assert advise(found).startswith("take int8")


def test_the_table_is_aligned_and_says_what_it_is_of():
    header, *rows, footer = quality_table([FP32, INT8, evaluated("int4", None)])
    words = [" ".join(line.split()) for line in (header, rows[0])]
    assert words[0] == "bundle precision disk weights decode ms perplexity KL same token"
    assert words[1] == "m-fp32 fp32 0 bytes 0 bytes 30 20.00 0.0000 100.0%"
    assert rows[1].split()[-3:] == ["20.10", "0.0050", "96.0%"]
    assert rows[2].split()[-4:] == ["-", "20.00", "-", "-"]
    assert len({len(row) for row in rows}) == 1
    assert (
        footer
        == "2047 tokens of book.txt in windows of 512, against m fp32 (perplexity 19.90), on cpu"
    )


def test_json_has_every_figure():
    told = as_json(INT8)
    assert told["bundle"] == "/b/m-int8"
    assert (told["precision"], told["decode_ms"], told["mean_kl"]) == ("int8", 12, 0.005)
    assert {"perplexity", "top1_agreement", "disk_bytes", "weights_bytes", "text_sha256"} <= set(
        told
    )
