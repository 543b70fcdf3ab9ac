"""The arguments of a call as an object, for surfaces that have them so."""

from __future__ import annotations

import json
from typing import Any

UNPARSED = "unparsed"


def arguments_object(text: str) -> dict[str, Any]:
    """What a model wrote as arguments; what is no JSON object stands under the name `unparsed`.

    So nothing of it is lost, and no client takes it for arguments that it knows.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {UNPARSED: text}
    return value if isinstance(value, dict) else {UNPARSED: text}
