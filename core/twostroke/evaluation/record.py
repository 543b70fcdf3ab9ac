"""Keeps what was measured in the bundle itself."""

from __future__ import annotations

from pathlib import Path

from twostroke.bundle.manifest import MANIFEST_NAME, Evaluation, Manifest
from twostroke.bundle.open import read_manifest
from twostroke.bundle.write import rewrite_manifest
from twostroke.errors import BundleError


def record_evaluation(root: Path, evaluation: Evaluation) -> None:
    """Adds an evaluation to `bundle.json`, in the place of one that measured the same.

    Mutates that file and nothing else; it is replaced in one step.

    Raises:
        BundleError: `root` is no bundle of ours, or cannot be written.
    """
    if not (root / MANIFEST_NAME).is_file():
        raise BundleError(
            f"{root} has no {MANIFEST_NAME} to keep figures in; leave --save out, or export the "
            f"model with `twostroke export`."
        )
    rewrite_manifest(root, with_evaluation(read_manifest(root), evaluation))


def with_evaluation(manifest: Manifest, evaluation: Evaluation) -> Manifest:
    """A manifest that has the evaluation as its newest."""
    kept = [old for old in manifest.evaluations if not evaluation.repeats(old)]
    return manifest.model_copy(update={"evaluations": (*kept, evaluation)})
