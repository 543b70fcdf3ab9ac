"""Figures are kept in the manifest, and nothing else of the bundle changes."""

from __future__ import annotations

import hashlib

import pytest

from twostroke.bundle import MANIFEST_NAME, open_bundle
from twostroke.bundle.digest import with_digest
from twostroke.bundle.manifest import Evaluation
from twostroke.errors import BundleError
from twostroke.evaluation.record import record_evaluation
from twostroke.testing.bundles import make_echo_bundle


def evaluation(perplexity: float = 20.0, text: str = "a.txt", **facts: object) -> Evaluation:
    return Evaluation(
        text=text,
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        num_tokens=100,
        window_tokens=64,
        backend="cpu",
        perplexity=perplexity,
        **facts,
    )


@pytest.fixture
def root(tmp_path):
    return make_echo_bundle(tmp_path / "echo")


def contents(root):
    return {path.name: path.read_bytes() for path in root.iterdir() if path.name != MANIFEST_NAME}


def test_it_is_kept_and_the_bundle_stays_whole(root):
    before, files = open_bundle(root).manifest, contents(root)
    record_evaluation(root, evaluation())
    manifest = open_bundle(root).manifest
    assert manifest.evaluations == (evaluation(),)
    assert with_digest(manifest.model_copy(update={"evaluations": ()})) == before
    assert contents(root) == files


def test_the_same_measurement_is_replaced_and_others_stay(root):
    for one in (evaluation(20), evaluation(30, "b.txt"), evaluation(25, source="x", mean_kl=0.1)):
        record_evaluation(root, one)
    record_evaluation(root, evaluation(21))
    found = open_bundle(root).manifest.evaluations
    assert [one.perplexity for one in found] == [30, 25, 21]


def test_a_crash_while_writing_leaves_the_old_manifest(root, monkeypatch):
    before = (root / MANIFEST_NAME).read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(BundleError, match="No space left on device; nothing was changed"):
        record_evaluation(root, evaluation())
    assert (root / MANIFEST_NAME).read_bytes() == before
    assert not list(root.glob("*.part")) + list(root.glob(".*"))


def test_a_folder_of_another_tool_has_no_place_for_it(tmp_path):
    with pytest.raises(BundleError, match=r"has no bundle\.json to keep figures in"):
        record_evaluation(tmp_path, evaluation())
    assert not list(tmp_path.iterdir())
