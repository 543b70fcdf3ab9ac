"""A YAML file as plain values that remember where each of them was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KeyPath = tuple[str | int, ...]


def show_path(path: KeyPath) -> str:
    """The path as people write it, e.g. `models[0].kv.budget`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: `place` is `FILE:LINE` or `--set a=b`, `order` sorts problems.

    `text` is the scalar as it stands there, before any variable was filled in.
    """

    place: str
    order: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    origin: Origin
    path: KeyPath
    message: str

    def line(self) -> str:
        """`FILE:LINE: path: message`."""
        return ": ".join(filter(None, (self.origin.place, show_path(self.path), self.message)))


@dataclass(slots=True)
class Document:
    """The values of the file with the command line's laid over them, and their origins.

    `values` and `keys` hold the origin of each value and of the key it stands under. `problems`
    gathers what was found while reading; a path in `spoilt` has a problem already, so nothing
    more is said about it.
    """

    root: Origin
    data: dict[str, Any] = field(default_factory=dict)
    values: dict[KeyPath, Origin] = field(default_factory=dict)
    keys: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    spoilt: set[KeyPath] = field(default_factory=set)

    def complain(self, origin: Origin, path: KeyPath, message: str) -> None:
        """Records a problem, after which nothing more is said of the path. Mutates the document."""
        self.problems.append(Problem(origin, path, message))
        if path:
            self.spoilt.add(path)

    def is_spoilt(self, path: KeyPath) -> bool:
        """Whether a problem with the path, or with what holds it, is already recorded."""
        return any(path[:end] in self.spoilt for end in range(1, len(path) + 1))

    def value_origin(self, path: KeyPath) -> Origin:
        """Where the value was written, or the nearest thing that holds it."""
        return self._nearest(self.values, path)

    def key_origin(self, path: KeyPath) -> Origin:
        """Where the key was written, or the nearest thing that holds it."""
        return self.keys.get(path) or self._nearest(self.values, path)

    def forget(self, path: KeyPath) -> None:
        """Drops what is known of a path and of everything below it, problems included.

        For a value that is about to be replaced. Mutates the document.
        """
        for origins in (self.values, self.keys):
            for known in [known for known in origins if known[: len(path)] == path]:
                del origins[known]
        self.spoilt = {known for known in self.spoilt if known[: len(path)] != path}
        self.problems = [p for p in self.problems if p.path[: len(path)] != path]

    def _nearest(self, origins: Mapping[KeyPath, Origin], path: KeyPath) -> Origin:
        for end in range(len(path), 0, -1):
            if path[:end] in origins:
                return origins[path[:end]]
        return self.root
