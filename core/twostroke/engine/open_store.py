"""Opens the store of prefixes that an engine's limits ask for."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

from twostroke.bundle import Bundle
from twostroke.engine.limits import EngineLimits
from twostroke.engine.prefix_files import PrefixFiles
from twostroke.engine.prefix_store import PrefixStore
from twostroke.types import Stroke

log = logging.getLogger(__name__)


def open_store(
    bundle: Bundle, limits: EngineLimits, dialects: Mapping[Stroke, str], *, has_answers: bool
) -> PrefixStore | None:
    """The store, None where there is to be none; `has_answers`: of answers too, not only prompts.

    Raises:
        ConfigError: its folder cannot be used.
    """
    if not limits.prefix_store_bytes or limits.reuse_prefixes == "off":
        return None
    key = _key(bundle, dialects, has_answers=has_answers)
    if limits.prefix_store_path is None or key is None:
        if limits.prefix_store_path is not None:
            log.warning(
                "%s: a folder of another tool carries no checksum, so prefixes are stored in "
                "memory only",
                bundle.manifest.name,
            )
        return PrefixStore(limits.prefix_store_bytes)
    return PrefixStore(limits.prefix_store_bytes, PrefixFiles(limits.prefix_store_path, key))


def _key(bundle: Bundle, dialects: Mapping[Stroke, str], *, has_answers: bool) -> str | None:
    """Names all that the numbers in a KV cache depend on."""
    manifest = bundle.manifest
    if manifest.manifest_sha256 is None:
        return None
    facts = {
        "bundle": manifest.manifest_sha256,
        "graphs": [bundle.graph(stroke, dialects.get(stroke)).name for stroke in Stroke],
        "has_answers": has_answers,
        "layers": [(layer.num_kv_heads, layer.head_dim) for layer in manifest.kv_layers],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
