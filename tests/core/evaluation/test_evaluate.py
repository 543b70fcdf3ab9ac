"""Real tiny graphs over a text: the figures are those of one token fed after another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import Quantisation, Tokens
from twostroke.bundle.open import read_manifest
from twostroke.bundle.write import rewrite_manifest
from twostroke.engine.build import open_runner
from twostroke.errors import BackendError, BundleError
from twostroke.evaluation import evaluate_bundles, read_text
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.text import Tokenizer
from twostroke.types import Stroke

PROSE = "A kettle boils sooner with its lid on. " * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text(PROSE)
    return read_text(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "other", TinyModel(seed=1))


def step_by_step(plugins, root, num_tokens):
    """log p [tokens - 1, vocab] of a text that fits one window, by the decode graph alone."""
    opened = open_bundle(root)
    ids = Tokenizer.open(opened).encode(PROSE, special=False, add_bos=False)[:num_tokens]
    backend = open_backend(plugins, "cpu").backend
    runner = open_runner(opened, backend, backend, num_rows=1, context_tokens=256)
    try:
        rows = [runner.prefill(0, 0, ids[:1], is_last=True)[0].copy()]
        rows += [runner.decode(0, [ids[i]], [i])[0].copy() for i in range(1, num_tokens - 1)]
    finally:
        runner.close()
        backend.close()
    logits = np.array(rows, np.float64)
    return ids, logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def rewrite(root, **facts):
    """Changes the manifest, and its digest with it."""
    rewrite_manifest(root, read_manifest(root).model_copy(update=facts))


def test_figures_are_those_of_the_decode_graph_step_by_step(plugins, text, bundle, other):
    found = evaluate_bundles([bundle, other], text, plugins, source=bundle, num_tokens=200)
    ids, log_p = step_by_step(plugins, bundle, 200)
    _, log_q = step_by_step(plugins, other, 200)
    assert [one.bundle.root for one in found] == [bundle, other]
    for one, log_own in zip(found, (log_p, log_q), strict=True):
        figures = one.evaluation
        nll = -log_own[range(199), ids[1:]].mean()
        assert figures.perplexity == pytest.approx(math.exp(nll), rel=1e-4)
        assert (figures.num_tokens, figures.window_tokens) == (199, 200)
        assert (figures.text, figures.text_sha256) == ("prose.txt", text.sha256)
        assert (figures.source, figures.backend) == ("tiny fp32", "cpu")
        assert one.decode_ms > 0
        assert one.weights_bytes < one.bundle.num_bytes
    own, theirs = (one.evaluation for one in found)
    assert (own.mean_kl, own.top1_agreement) == (0.0, 1.0)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1).mean()
    assert theirs.mean_kl == pytest.approx(kl, rel=1e-4)
    assert theirs.top1_agreement == (log_p.argmax(-1) == log_q.argmax(-1)).mean()


def test_strokes_that_differ_are_measured_as_they_serve(plugins, text, tmp_path):
    """The same graphs, called different: then the tokens go through decode, to equal figures."""
    root = make_onnx_bundle(tmp_path / "pair")
    (alike,) = evaluate_bundles([root], text, plugins, num_tokens=400)
    graphs = [
        graph.model_copy(update={"quantisation": Quantisation(precision="int4")})
        if graph.stroke is Stroke.DECODE
        else graph
        for graph in open_bundle(root).manifest.graphs
    ]
    rewrite(root, graphs=tuple(graphs))
    (different,) = evaluate_bundles([root], text, plugins, num_tokens=400)
    assert different.evaluation.num_tokens == alike.evaluation.num_tokens == 399
    expected = pytest.approx(alike.evaluation.perplexity, rel=1e-4)
    assert different.evaluation.perplexity == expected
    assert different.decode_ms > 0


def test_a_text_longer_than_the_context_and_no_longer_than_asked_for(plugins, text, tmp_path):
    root = make_onnx_bundle(tmp_path / "short", TinyModel(context_tokens=48))
    (one,) = evaluate_bundles([root], text, plugins, num_tokens=300)
    assert (one.evaluation.num_tokens, one.evaluation.window_tokens) == (299, 48)
    assert (one.evaluation.source, one.evaluation.mean_kl) == (None, None)


def test_bundles_of_other_tokens_are_not_compared(plugins, text, bundle, tmp_path):
    other = make_onnx_bundle(tmp_path / "prefixed")
    manifest = open_bundle(other).manifest
    shape = manifest.architecture.model_copy(update={"vocab_size": 300})
    rewrite(other, architecture=shape, tokens=Tokens(bos_id=1))
    with pytest.raises(BundleError, match=r"prefixed does not make the same tokens of prose\.txt"):
        evaluate_bundles([other], text, plugins, source=bundle)


def test_an_unknown_backend_is_refused(plugins, text, bundle):
    with pytest.raises(BackendError, match="no backend 'gpu'"):
        evaluate_bundles([bundle], text, plugins, backend="gpu")


def test_progress_names_the_bundle_and_rises(plugins, text, bundle, other):
    seen: list[tuple[str, float]] = []
    evaluate_bundles(
        [other],
        text,
        plugins,
        source=bundle,
        num_tokens=100,
        report=lambda stage, fraction: seen.append((stage, fraction)),
    )
    assert list(dict.fromkeys(stage for stage, _ in seen)) == ["evaluate tiny", "evaluate other"]
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
