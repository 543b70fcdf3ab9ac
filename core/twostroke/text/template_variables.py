"""Values that a request gives to a chat template, e.g. `{"enable_thinking": false}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.text.valid_unicode import check_unicode

PARAM = "chat_template_kwargs"
_NAME = re.compile(r"[A-Za-z]\w{0,63}")
_TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
_MAX_DEPTH = 16


def check_variables(value: Any) -> dict[str, Any]:
    """The variables of a request; none for None.

    Raises:
        RequestError: it is no object of JSON, is nested too deeply, or gives a name that is the
            server's to give (messages, tools, special tokens and the like).
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(
            f'{PARAM} must be an object, e.g. {{"enable_thinking": false}}.', param=PARAM
        )
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(
                f"{PARAM}: {str(name)[:40]!r} is no name of a variable.", param=PARAM
            )
        if name in _TAKEN or name.endswith("_token"):
            raise RequestError(
                f"{PARAM}.{name} cannot be given: the server says what it is.",
                param=f"{PARAM}.{name}",
            )
        _check_value(value[name], f"{PARAM}.{name}", _MAX_DEPTH)
    return dict(value)


def _check_value(value: Any, path: str, depth: int) -> None:
    if depth == 0:
        raise RequestError(f"{path} is nested too deeply.", param=path)
    if isinstance(value, str):
        check_unicode(value, path)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check_value(key, path, depth - 1)
            _check_value(each, path, depth - 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_value(each, path, depth - 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise RequestError(f"{path} must be a value of JSON.", param=path)
