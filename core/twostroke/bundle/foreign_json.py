"""Reads the JSON files beside foreign graphs, which anyone may have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.bundle.foreign_files import check_file
from twostroke.errors import BundleError

Json = Mapping[str, Any]


def read_json(root: Path, name: str) -> Json:
    """A JSON object of the folder.

    Raises:
        BundleError: the file is missing, a link, or holds something else.
    """
    check_file(root, name, named_by="the model")
    path = root / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON: {error}. Copy it again.") from None
    if not isinstance(found, dict):
        raise BundleError(f"{path} must hold a JSON object. Copy it again.")
    return found


def read_optional(root: Path, name: str) -> Json:
    """As `read_json`; empty where there is no such file."""
    return read_json(root, name) if (root / name).exists() else {}


def table(config: Json, name: str) -> Json:
    """The object under a key; empty where there is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def number(where: Path, config: Json, names: tuple[str, ...], default: int | None = None) -> int:
    """The first positive number under one of several keys.

    Raises:
        BundleError: there is none, and no default.
    """
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is not None:
        return default
    raise BundleError(
        f"{where} does not say {names[0]}, which serving needs. Add it, as the source model has it."
    )


def ids(value: object) -> list[int]:
    """One id, several, or none (null, or a negative number)."""
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
