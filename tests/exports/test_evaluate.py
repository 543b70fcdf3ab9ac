"""Measuring on a text during the export: the same figures as measuring the finished bundles."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch

from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle import open_bundle
from twostroke.errors import BundleError, ExportError, RequestError
from twostroke.evaluation import evaluate_bundles, read_text
from twostroke_export.load import load
from twostroke_export.pipeline import export_several
from twostroke_export.reference import evaluation_text
from twostroke_export.source import resolve

PRECISIONS = {"fp32": None, "mixed": None, "int8": "int4"}  # of prefill, and of decode where other


@pytest.fixture(scope="module")
def text_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(evaluation_text()[1000:2200])
    return path


@pytest.fixture(scope="module")
def stages():
    return []


@pytest.fixture(scope="module")
def made(tiny_llama, tmp_path_factory, text_path, stages):
    folder = tmp_path_factory.mktemp("made")
    options = [
        ExportOptions(
            str(tiny_llama),
            folder / precision,
            precision,
            decode_precision=decode,
            context_tokens=128,
            evaluate=text_path,
            mixed_kl=0.01 if precision == "mixed" else None,
        )
        for precision, decode in PRECISIONS.items()
    ]
    return dict(zip(PRECISIONS, export_several(options, stages.append), strict=True))


def evaluation(root):
    (found,) = open_bundle(root).manifest.evaluations
    return found


def test_perplexity_of_the_source_is_that_of_the_torch_model(made, tiny_llama, text_path):
    loaded = load(resolve(str(tiny_llama)), lambda _: None)
    ids = loaded.tokenizer.backend_tokenizer.encode(text_path.read_text()).ids
    nll, scored = [], 1
    while scored < len(ids):  # windows of 128 tokens, 64 of them new
        end = min(128 if scored == 1 else scored + 64, len(ids))
        start = max(0, end - 128)
        with torch.no_grad():
            logits = loaded.model(input_ids=torch.tensor([ids[start:end]]), use_cache=False).logits
        log_p = torch.log_softmax(logits[0].double(), -1)
        nll += [-float(log_p[i - 1 - start, ids[i]]) for i in range(scored, end)]
        scored = end
    found = evaluation(made["fp32"])
    assert found.source == "tiny-llama fp32 (transformers)"
    assert (found.num_tokens, found.window_tokens) == (len(ids) - 1, 128)
    assert found.source_perplexity == pytest.approx(math.exp(np.mean(nll)), rel=1e-5)
    assert found.perplexity == pytest.approx(found.source_perplexity, rel=1e-4)
    assert found.mean_kl == pytest.approx(0, abs=1e-6)
    assert found.top1_agreement > 0.99


def test_the_figures_are_those_of_the_command(made, text_path, tmp_path, monkeypatch):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path))
    roots = [made[precision] for precision in PRECISIONS]
    again = evaluate_bundles(roots, read_text(text_path), load_plugins(), source=made["fp32"])
    for root, one in zip(roots, again, strict=True):
        found, other = evaluation(root), one.evaluation
        assert (found.text, found.text_sha256) == (other.text, other.text_sha256)
        assert found.num_tokens == other.num_tokens
        assert found.perplexity == pytest.approx(other.perplexity, rel=2e-3)
        assert found.mean_kl == pytest.approx(other.mean_kl, rel=0.02, abs=1e-6)
        assert found.top1_agreement == pytest.approx(other.top1_agreement, abs=0.02)
    assert evaluation(made["fp32"]).mean_kl < 1e-6
    # Its decode graph has 4 bits, and that shows although prefill has 8.
    assert evaluation(made["int8"]).mean_kl > 3e-3


def test_the_chosen_bits_are_those_of_the_graphs_and_of_the_manifest(made):
    bundle = open_bundle(made["mixed"])
    chosen = bundle.manifest.quantisation.group_bits
    assert set(chosen.values()) == {4, 8}
    for graph in bundle.manifest.graphs:
        assert graph.quantisation.group_bits == chosen
        nodes = onnx.load(bundle.root / graph.file, load_external_data=False).graph.node
        products = [node for node in nodes if node.op_type == "MatMulNBits"]
        bits = [a.i for node in products for a in node.attribute if a.name == "bits"]
        assert bits == [*chosen.values(), 8]  # in graph order, and the head


def test_progress_rises(made, stages):
    assert made
    fractions = [stage.fraction for stage in stages]
    assert fractions == sorted(fractions)
    assert {"evaluate the source", "choose bits", "evaluate"} <= {s.stage for s in stages}


def test_bundles_that_differ_in_more_than_precision_are_not_made_at_once(tiny_llama, tmp_path):
    options = [
        ExportOptions(str(tiny_llama), tmp_path / "a", "fp32", context_tokens=64),
        ExportOptions(str(tiny_llama), tmp_path / "b", "int8", context_tokens=128),
    ]
    with pytest.raises(ExportError, match="differ in precision and nothing else"):
        export_several(options, lambda _: None)
    same = [ExportOptions(str(tiny_llama), tmp_path / "a", name) for name in ("fp32", "int8")]
    with pytest.raises(ExportError, match="each in a folder of its own"):
        export_several(same, lambda _: None)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_stops_all_of_them(tiny_llama, tmp_path):
    (tmp_path / "b").mkdir()
    options = [ExportOptions(str(tiny_llama), tmp_path / name, "fp32") for name in "ab"]
    with pytest.raises(BundleError, match="b exists already"):
        export_several(options, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_text_that_is_none_leaves_nothing(tiny_llama, tmp_path):
    text = tmp_path / "text"
    options = ExportOptions(str(tiny_llama), tmp_path / "out", "fp32", evaluate=text)
    with pytest.raises(RequestError, match="text cannot be read"):
        export_several([options], lambda _: None)
    text.write_text("")
    with pytest.raises(RequestError, match="nothing to predict in 0 tokens"):
        export_several([options], lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
