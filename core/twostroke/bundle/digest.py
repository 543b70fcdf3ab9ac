"""The digest that a manifest carries of itself, so that a changed one is told from an exported one.

It is taken of the facts and not of the text: their order and spacing do not matter, and a later
version may know more fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from twostroke.bundle.manifest import Manifest

DIGEST = "manifest_sha256"


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's facts, its own digest left out, in hexadecimal."""
    others = {key: value for key, value in facts.items() if key != DIGEST}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def with_digest(manifest: Manifest) -> Manifest:
    """The manifest with the digest of its facts, whatever digest it had."""
    facts = json.loads(manifest.model_dump_json())
    return manifest.model_copy(update={DIGEST: digest_of(facts)})
