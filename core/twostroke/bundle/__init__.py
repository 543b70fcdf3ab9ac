"""Bundles: a model on disk, written atomically and opened only after it was checked."""

from twostroke.bundle.foreign import open_foreign
from twostroke.bundle.foreign_files import is_foreign
from twostroke.bundle.manifest import MANIFEST_NAME, Manifest
from twostroke.bundle.open import Bundle, is_bundle, open_bundle
from twostroke.bundle.write import seal, sealing, sweep

__all__ = [
    "MANIFEST_NAME",
    "Bundle",
    "Manifest",
    "is_bundle",
    "is_foreign",
    "open_bundle",
    "open_foreign",
    "seal",
    "sealing",
    "sweep",
]
