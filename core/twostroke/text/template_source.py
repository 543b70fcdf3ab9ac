"""Where a bundle keeps its chat template: a file of its own, or tokenizer_config.json."""

from __future__ import annotations

import json
from typing import Any

from twostroke.bundle import Bundle
from twostroke.errors import BundleError


def template_source(bundle: Bundle) -> str | None:
    """The text of `chat_template.jinja`, else of `chat_template` in tokenizer_config.json.

    Of several templates by name it is the one called `default`. None where there is none.

    Raises:
        BundleError: a file is not UTF-8, or not JSON.
    """
    path = bundle.file("chat_template.jinja")
    if path is not None:
        try:
            return path.read_text(encoding="utf-8")
        except ValueError as error:
            raise BundleError(f"{path} is not UTF-8: {error}. Save it as UTF-8.") from None
    found = tokenizer_config(bundle).get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default") or next(iter(named.values()), None)
    return found if isinstance(found, str) and found.strip() else None


def tokenizer_config(bundle: Bundle) -> dict[str, Any]:
    """The contents of tokenizer_config.json; empty where there is no such file.

    Raises:
        BundleError: it is not a JSON object.
    """
    path = bundle.file("tokenizer_config.json")
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{path} is not JSON: {error}. Export the model again.") from None
    if not isinstance(config, dict):
        raise BundleError(f"{path} must hold a JSON object. Export the model again.")
    return config
