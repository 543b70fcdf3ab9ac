"""Adds halves of a bundle's graphs to the bundle, over the weights that are there already."""

from __future__ import annotations

from pathlib import Path, PurePath

import onnx_ir as ir

from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import CutFact, FileFact, GraphFact, Manifest
from twostroke.bundle.open import hash_file
from twostroke.bundle.write import rewrite_manifest
from twostroke.errors import BundleError, ExportError
from twostroke_export.passes.cut import cut


def split_bundle(root: Path, num_front_layers: int) -> Manifest:
    """Cuts every graph of a bundle behind its first `num_front_layers` layers.

    Mutates the bundle: four small files for each dialect, and the manifest that lists them, which
    is replaced last and in one step. Graphs that are cut there already stay as they are.

    Raises:
        ExportError: the model has no such layers, or its graphs cannot be cut.
        BundleError: it is no bundle of ours, or cannot be written.
    """
    manifest = open_bundle(root, check_hashes=False).manifest
    uncut = [g for g in manifest.graphs if manifest.cut(g.file, num_front_layers) is None]
    if not uncut:
        return manifest
    cuts = [_cut(root, fact, num_front_layers, len(manifest.kv_layers)) for fact in uncut]
    files = dict(manifest.files)
    for made in cuts:
        for name in (made.front, made.back):
            path = root / name
            files[name] = FileFact(num_bytes=path.stat().st_size, sha256=hash_file(path))
    manifest = manifest.model_copy(update={"cuts": (*manifest.cuts, *cuts), "files": files})
    rewrite_manifest(root, manifest)
    return manifest


def _cut(root: Path, fact: GraphFact, num_front_layers: int, num_layers: int) -> CutFact:
    try:
        model = ir.load(root / fact.file)
        halves = cut(model, num_front_layers, num_layers)
    except ExportError as error:
        raise ExportError(f"{root / fact.file} was not cut: {error}") from error
    stem = PurePath(fact.file).stem
    last = num_front_layers - 1
    made = CutFact(
        file=fact.file,
        num_front_layers=num_front_layers,
        front=f"{stem}.layers-0-{last}.onnx",
        back=f"{stem}.layers-{num_front_layers}-{num_layers - 1}.onnx",
    )
    for half, name in zip(halves, (made.front, made.back), strict=True):
        try:
            ir.save(half, root / name)
        except OSError as error:
            raise BundleError(
                f"{root / name} cannot be written: {error.strerror}. Copy the bundle to a folder "
                "of yours, and split it there."
            ) from error
    return made
