"""Halves of real graphs: the same numbers as the whole, in both dialects, on two backends."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.backends.split import SplitBackend
from twostroke.bundle import open_bundle
from twostroke.engine.build import open_runner
from twostroke.engine.runner import Runner
from twostroke.errors import BundleError, ExportError
from twostroke.model import Model
from twostroke.types import Stroke
from twostroke_export.passes.cut import cut
from twostroke_export.pipeline import export_recipes
from twostroke_export.recipe import Recipe
from twostroke_export.split import split_bundle
from twostroke_export.testing.parity_checks import prompt

FAMILIES = {
    "gemma2": {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "phi": {},  # a rotary of half the head, biases
    "qwen3_moe": {
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}


@pytest.fixture(scope="module")
def exported(make_model, tmp_path_factory) -> Callable[[str], Path]:
    """The bundle of a family, of three layers in both dialects; not to be changed."""

    @functools.cache
    def export(family: str) -> Path:
        source = make_model(family, **FAMILIES[family], num_hidden_layers=3)
        out = tmp_path_factory.mktemp("split") / family
        recipe = Recipe("int8", "int8", dialects=("fused", "standard"))
        export_recipes(str(source), {out: recipe})
        return out

    return export


@pytest.fixture
def bundle(request, exported, tmp_path: Path) -> Path:
    """A copy of a family's bundle."""
    whole = exported(getattr(request, "param", "gemma2"))
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


every_family = pytest.mark.parametrize("bundle", FAMILIES, indirect=True)


def logits(runner: Runner) -> np.ndarray:
    """Of a prompt in two chunks and four decode steps, all positions: [tokens, vocab]."""
    ids = prompt(24)
    found = [runner.prefill(0, 0, ids[:11], is_last=False).copy()]
    found.append(runner.prefill(0, 11, ids[11:], is_last=True).copy())
    for step in range(4):
        found.append(runner.decode(0, [ids[step]], [len(ids) + step]).copy())
    return np.concatenate(found)


@every_family
@pytest.mark.parametrize("dialect", ["fused", "standard"])
def test_two_halves_give_the_logits_of_the_whole(bundle: Path, dialect: str):
    num_front = 2
    split_bundle(bundle, num_front)
    opened, plugins = open_bundle(bundle), load_plugins()
    one, front, back = (open_backend(plugins, "cpu").backend for _ in range(3))
    halves = {cut.file: (cut.front, cut.back) for cut in opened.manifest.cuts}
    pair = SplitBackend(front, back, num_front, halves)
    found = []
    for backend in (one, pair):
        dialects = dict.fromkeys(Stroke, dialect)
        runner = open_runner(
            opened, backend, backend, num_rows=2, context_tokens=64, dialects=dialects
        )
        found.append(logits(runner))
        runner.close()
    assert np.abs(found[0]).max() > 0
    # The same products over the same bytes; a rewrite across the cut may round otherwise.
    np.testing.assert_allclose(found[1], found[0], atol=1e-5 * np.abs(found[0]).max())


def test_the_weights_are_not_written_again(bundle: Path):
    before = {path.name: path.stat().st_size for path in bundle.iterdir()}
    split_bundle(bundle, 1)
    added = {p.name: p.stat().st_size for p in bundle.iterdir() if p.name not in before}
    assert len(added) == 8  # two strokes, two dialects, two halves
    assert (bundle / "weights.bin").stat().st_size == before["weights.bin"]
    assert sum(added.values()) < 2 * sum(before[name] for name in before if ".onnx" in name)
    open_bundle(bundle)  # hashes and all


def test_a_cut_that_is_there_is_not_made_again(bundle: Path):
    manifest = split_bundle(bundle, 2)
    stamps = {name: (bundle / name).stat().st_mtime_ns for name in manifest.files}
    assert split_bundle(bundle, 2).cuts == manifest.cuts
    assert {name: (bundle / name).stat().st_mtime_ns for name in manifest.files} == stamps
    assert len(split_bundle(bundle, 1).cuts) == 8  # beside the others


@pytest.mark.parametrize("num_front", [0, 3, -1])
def test_a_cut_behind_no_layer_is_refused(bundle: Path, num_front: int):
    before = (bundle / "bundle.json").read_bytes()
    with pytest.raises(ExportError, match=rf"was not cut: .*1 to 2, not {num_front}"):
        split_bundle(bundle, num_front)
    assert (bundle / "bundle.json").read_bytes() == before


def test_a_graph_without_a_known_width_is_refused(bundle: Path):
    model = ir.load(bundle / "prefill.onnx")
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    with pytest.raises(ExportError, match="no place behind its first 1 layers"):
        cut(model, 1, 3)


def test_the_halves_are_part_of_the_seal(bundle: Path):
    manifest = split_bundle(bundle, 1)
    (bundle / manifest.cuts[0].back).unlink()
    with pytest.raises(BundleError, match=r"layers-1-2\.onnx"):
        open_bundle(bundle)


def test_a_served_model_is_split_by_itself(bundle: Path):
    ids = tuple(prompt(20))
    wishes = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    with Model.open(bundle, backend="cpu") as model:
        expected = model.generate(ids, **wishes).complete().token_ids
    with Model.open(bundle, backend="cpu", offload={"backend": "cpu", "layers": 2}) as model:
        report = model.placement_report["decode"]
        assert (report["backend"], report["requested"]) == ("cpu+cpu", "cpu+cpu")
        answers = [model.generate(ids, **wishes) for _ in range(3)]
        assert [answer.complete().token_ids for answer in answers] == [expected] * 3
    assert {cut.num_front_layers for cut in open_bundle(bundle).manifest.cuts} == {2}


@pytest.mark.parametrize("order", [("cpu", "openvino"), ("openvino", "cpu")])
def test_halves_on_different_backends_agree_with_the_whole(bundle: Path, order: tuple[str, str]):
    plugins = load_plugins()
    if not (found := plugins.backends["openvino"].probe()).is_available:
        pytest.skip(found.reason)
    split_bundle(bundle, 2)
    opened = open_bundle(bundle)
    halves = {cut.file: (cut.front, cut.back) for cut in opened.manifest.cuts}
    pair = SplitBackend(*(open_backend(plugins, name).backend for name in order), 2, halves)
    answers = []
    for backend in (open_backend(plugins, "cpu").backend, pair):
        runner = open_runner(
            opened,
            backend,
            backend,
            num_rows=2,
            context_tokens=64,
            dialects=dict.fromkeys(Stroke, "standard"),
        )
        answers.append(logits(runner))
        placed = runner.placements[Stroke.DECODE].nodes
        runner.close()
        backend.close()
    assert set(placed) == {"CPUExecutionProvider", "OpenVINOExecutionProvider"}
    # OpenVINO multiplies in bfloat16 where the processor can.
    np.testing.assert_allclose(answers[1], answers[0], atol=0.05 * np.abs(answers[0]).max())
