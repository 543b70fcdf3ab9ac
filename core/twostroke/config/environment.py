"""Environment variables in the YAML's values: `${NAME}`, `${NAME:-default}`, `$$` for a dollar."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\$|\$\{(?P<body>[^}]*)\}|(?P<open>\$\{)")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Fills in the variables of one value.

    As in a shell, the default also stands in for a variable that is set but empty. A dollar that
    begins none of the three forms stays as it is.

    Raises:
        ValueError: a variable is not set and has no default, or the form is not closed or named.
    """
    return _VARIABLE.sub(lambda match: _value(match, environ), text)


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match[0] == "$$":
        return "$"
    body = None if match["open"] else _BODY.fullmatch(match["body"])
    if body is None:
        raise ValueError(
            f"{match[0]!r} is not a variable; write ${{NAME}}, ${{NAME:-default}}, "
            "or $$ for a plain dollar"
        )
    default = body["default"]
    value = environ.get(body["name"])
    if default is not None:
        return value or str(default).removeprefix(":-")
    if value is None:
        raise ValueError(
            f"the environment variable {body['name']} is not set; "
            f"set it, or write ${{{body['name']}:-default}}"
        )
    return value
