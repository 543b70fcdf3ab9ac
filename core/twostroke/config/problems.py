"""Pydantic's findings in our words: line, key path, what was expected, the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from twostroke.config.document import Document, KeyPath, Origin, Problem, show_path
from twostroke.config.json_schema import describe, lookup, plain_schema, resolve
from twostroke.config.names import WRONG_NAME

_SECRET = ("server", "keys")


def find_problems(document: Document, error: ValidationError) -> list[Problem]:
    """One problem a place; places that were already complained about are left out.

    So is a container of something wrong: pydantic counts only the valid items of a list.
    """
    found: dict[KeyPath, Problem] = {}
    for details in error.errors():
        problem = _translate(document, details)
        if not document.is_spoilt(problem.path):
            found.setdefault(problem.path, problem)
    wrong = {*found, *document.spoilt}
    containers = {path[:end] for path in wrong for end in range(len(path))}
    return [problem for path, problem in found.items() if path not in containers]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return close[0] if close else None


def _translate(document: Document, details: ErrorDetails) -> Problem:
    location, context = details["loc"], details.get("ctx", {})
    if details["type"] == "extra_forbidden":
        return Problem(document.key_origin(location), location, _unknown_key(location))
    if details["type"] == WRONG_NAME:
        path: KeyPath = context["path"]
        return Problem(document.value_origin(path), path, details["msg"])
    if details["type"] == "own_words":  # a validator of ours, whose message stands alone
        return Problem(document.value_origin(location), location, details["msg"])
    path = _known_part(location)
    origin = document.value_origin(path)
    expected = describe(lookup(path) or {})
    if details["type"] == "missing":
        return Problem(origin, path, f"is missing; expected {expected}")
    return Problem(origin, path, f"expected {expected}, got {_got(details, path, origin)}")


def _known_part(location: KeyPath) -> KeyPath:
    """The part of the location that names settings; the rest are pydantic's names of types."""
    end = len(location)
    while lookup(location[:end]) is None:
        end -= 1
    return location[:end]


def _got(details: ErrorDetails, path: KeyPath, origin: Origin) -> str:
    value = details["input"]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    takes_text = (lookup(path) or {}).get("type") == "string"
    if path[:2] == _SECRET:
        if value in (None, ""):
            return "nothing"
        is_item = len(path) > len(_SECRET)
        return "another type; put the key in quotes" if is_item else "one value; write [...]"
    if value is None:
        return "nothing"
    if not isinstance(value, str):
        written = origin.text or str(value)
        return f'{written}; write "{written}"' if takes_text else written
    shown = f"{value!r}"
    if origin.text is not None and "${" in origin.text:
        shown += f" from {origin.text}"
    meant = nearest(value, (lookup(path) or {}).get("enum", ()))
    return f"{shown}; did you mean {meant!r}?" if meant else shown


def _unknown_key(location: KeyPath) -> str:
    section = lookup(location[:-1]) or {}
    word = str(location[-1])
    valid = section.get("properties", {})
    meant = nearest(word, valid)
    if meant:
        return f"unknown key; did you mean {meant!r}?"
    elsewhere = [path for path in _all_paths(plain_schema(), ()) if path[-1] == word]
    if elsewhere:
        return f"unknown key here; did you mean {show_path(elsewhere[0])!r}?"
    return f"unknown key; the keys here are {', '.join(valid)}"


def _all_paths(node: dict[str, Any], path: KeyPath) -> Iterable[KeyPath]:
    node = resolve(node)
    for name, child in node.get("properties", {}).items():
        yield (*path, name)
        yield from _all_paths(child, (*path, name))
    if "items" in node:
        yield from _all_paths(node["items"], (*path, 0))
