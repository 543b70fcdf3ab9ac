"""`--set a.b=c`: values of the command line laid over the file's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from twostroke.config.document import Document, KeyPath, Origin, Problem, show_path
from twostroke.config.read import read_value
from twostroke.config.schema import Config
from twostroke.errors import ConfigError

_AFTER_THE_FILE = 1_000_000_000  # so that problems of flags are listed after those of the file


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Lays each `PATH=VALUE` over the document, the last one winning. Mutates the document.

    A value replaces what stood there, mappings and lists included. List items are named by index;
    models by name too (`models.NAME.backend=cpu`). The index after the last item appends.
    Flags that cannot be applied are recorded as problems.
    """
    for number, text in enumerate(overrides):
        name, equals, value = text.partition("=")
        shown = f"{name}=…" if name.startswith("server.keys") else text  # keys are secrets
        flag, order = f"--set {shown}", _AFTER_THE_FILE + number
        if not equals or not name.strip(". "):
            message = "expected a key path and a value, for example server.port=9000"
            document.problems.append(Problem(Origin(flag, order), (), message))
            continue
        try:
            path = _resolve(document, name.strip())
            document.forget(path)
            new = read_value(value, flag, order, document, path)
            _assign(document.data, path, new)
            for end in range(1, len(path) + 1):
                document.keys.setdefault(path[:end], Origin(flag, order))
                document.values.setdefault(path[:end], Origin(flag, order))
        except ConfigError as error:
            document.problems.extend(Problem(Origin("", order), (), p) for p in error.problems)
        except ValueError as error:
            document.problems.append(Problem(Origin(flag, order), (), str(error)))


def _resolve(document: Document, name: str) -> KeyPath:
    if name == "models" or not name.startswith("models."):
        return tuple(int(part) if part.isdecimal() else part for part in name.split("."))
    if "models" not in document.data:  # the default model can be changed without being repeated
        default = Config().models[0]
        document.data["models"] = [{"name": default.name, "source": default.source}]
    index, rest = _model_index(document.data["models"], name.removeprefix("models."))
    parts = (int(part) if part.isdecimal() else part for part in rest.split(".") if part)
    return ("models", index, *parts)


def _model_index(models: Any, rest: str) -> tuple[int, str]:
    """The model that `rest` begins with, and what follows; names may hold dots themselves."""
    first, _, after = rest.partition(".")
    if first.isdecimal():
        return int(first), after
    entries = models if isinstance(models, list) else []
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    matches = [n for n in names if isinstance(n, str) and (rest + ".").startswith(n + ".")]
    if not matches:
        known = ", ".join(str(name) for name in names if name) or "none"
        raise ValueError(f"no model is named {first!r}; the models are: {known}")
    longest = max(matches, key=len)
    return names.index(longest), rest[len(longest) + 1 :]


def _assign(data: Any, path: KeyPath, value: Any) -> None:
    """Sets the value, making mappings on the way. Mutates `data`."""
    for depth, (part, following) in enumerate(itertools.pairwise(path)):
        empty: Any = [] if isinstance(following, int) else {}
        _make_room(data, path[:depth], part, empty)
        if data[part] is None:  # `server:` with nothing below it
            data[part] = empty
        data = data[part]
    _make_room(data, path[:-1], path[-1], None)
    data[path[-1]] = value


def _make_room(data: Any, above: KeyPath, part: str | int, empty: Any) -> None:
    holder = show_path(above) or "the file"
    if isinstance(data, dict) and isinstance(part, str):
        data.setdefault(part, empty)
    elif isinstance(data, list) and isinstance(part, int):
        if part > len(data):
            raise ValueError(f"{holder} has {len(data)} items; the next index is {len(data)}")
        if part == len(data):
            data.append(empty)
    elif isinstance(data, list):
        raise ValueError(f"{holder} is a list of {len(data)} items; {part!r} is not an index of it")
    elif isinstance(data, dict):
        raise ValueError(f"{holder} has keys, no numbered items; there is no {part}")
    else:
        raise ValueError(f"{holder} is a single value; there is no {part!r} below it")
