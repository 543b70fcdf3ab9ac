"""Fields that would change an answer and are not built: refused, unless they ask for nothing.

Clients send fields of all kinds, so unknown ones are ignored; but silently different is the worst
answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from twostroke.errors import RequestError


def refuse_unless_harmless(
    body: Mapping[str, Any],
    harmless: Mapping[str, tuple[Any, ...]],
    taken: Collection[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Refuses a body with a field of `harmless` whose value is none of those that ask for nothing.

    Null always asks for nothing. `taken` are fields that the surface at hand does build; `reasons`
    are sentences that say more about a field.

    Raises:
        RequestError: names the field and the values that are taken.
    """
    for name in (body.keys() & harmless.keys()).difference(taken):
        value, allowed = body[name], harmless[name]
        if value is None or any(_same(value, each) for each in allowed):
            continue
        only = f"; only {' or '.join(map(json.dumps, allowed))} is taken" if allowed else ""
        raise RequestError(
            f"{name} is not supported by this server{only}. "
            f"{(reasons or {}).get(name, 'Leave it out.')}",
            param=name,
            code="unsupported_parameter",
        )


def _same(value: Any, allowed: Any) -> bool:
    """Equality in JSON's sense: in Python False equals 0, in a body it does not."""
    return type(value) is type(allowed) and bool(value == allowed)
