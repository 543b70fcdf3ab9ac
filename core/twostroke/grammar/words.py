"""Constraints as people write them: schemas as objects, choices as lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.types import Constraint, ConstraintKind


def constraint_from(
    given: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Constraint | None:
    """The one constraint among `given`, by the values of ConstraintKind; None where there is none.

    A value of None counts as not given. `names` says what the client called a kind, for messages.

    Raises:
        RequestError: several at once, or a value of the wrong type.
    """
    called = {kind: (names or {}).get(kind, kind.value) for kind in ConstraintKind}
    found = [kind for kind in ConstraintKind if given.get(kind) is not None]
    if not found:
        return None
    if len(found) > 1:
        both = " and ".join(called[kind] for kind in found)
        raise RequestError(
            f"{both} are both there; an answer follows one of them. Leave the others out.",
            param=called[found[1]],
        )
    kind = found[0]
    return _constraint(kind, given[kind], called[kind])


def _constraint(kind: ConstraintKind, value: Any, name: str) -> Constraint | None:
    if kind is ConstraintKind.JSON_OBJECT:
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false.", param=name)
        return Constraint(kind) if value else None
    if kind is ConstraintKind.JSON_SCHEMA:
        if isinstance(value, str):
            return Constraint(kind, value)
        if not isinstance(value, Mapping):
            raise RequestError(f"{name} must be a JSON schema, which is an object.", param=name)
        return Constraint(kind, _dumped(value, name))
    if kind is ConstraintKind.CHOICE:
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise RequestError(f"{name} must be a list of strings.", param=name)
        return Constraint(kind, _dumped(list(value), name))
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a string.", param=name)
    return Constraint(kind, value)


def _dumped(value: object, name: str) -> str:
    try:
        # The order of the keys is kept: an answer's properties come in it.
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise RequestError(f"{name} is nested too deeply.", param=name) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"{name} is not JSON: {error}.", param=name) from None
