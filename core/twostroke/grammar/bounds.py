"""Limits on a constraint, checked before any of it reaches the compiler.

The compiler is native code that walks schemas and grammars by recursion: a chain of references
that is long enough overflows its stack, which ends the process and cannot be caught. Measured on
`STACK_BYTES`: the limits here leave a factor of two or more to the shortest chain that does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from twostroke.errors import RequestError
from twostroke.types import Constraint, ConstraintKind

STACK_BYTES = 128 * 2**20  # of the threads that compile; only what is touched takes memory
MAX_TEXT_BYTES = 256 * 1024
MAX_PATTERN_BYTES = 16 * 1024
MAX_DEPTH = 100  # objects and lists in each other
MAX_CHAIN = 10_000  # depth times references: how deep a walk along them can lead
MAX_RULES = 1_000
MAX_CHOICES = 10_000

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# A group that holds one repeated atom and nothing else, repeated: `(a+)+`, `(?:\\d*)*`.
_ATOM = r"(?:\\.|\[(?:\\.|[^\]\\])+\]|[^\\()\[\]|])"
_MANY = r"(?:[+*]|\{\d+,\})\??"
_REPEATED_REPETITION = re.compile(rf"(?<!\\)\((?:\?:)?{_ATOM}{_MANY}\){_MANY}", re.DOTALL)


def check_constraint(constraint: Constraint) -> None:
    """Refuses what is too large, too deep, or no schema or pattern at all.

    Raises:
        RequestError: names the constraint's kind in `param` and the limit that it exceeds.
    """
    name, text = constraint.kind.value, constraint.text
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise RequestError(f"{name} is larger than {MAX_TEXT_BYTES // 1024} KiB.", param=name)
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            check_schema(parsed(text, name), name)
        case ConstraintKind.CHOICE:
            _check_choices(parsed(text, name), name)
        case ConstraintKind.REGEX:
            _check_pattern(text, name)
        case ConstraintKind.GRAMMAR:
            _check_lark(text, name)


def parsed(text: str, name: str) -> Any:
    """The value of a JSON text.

    Raises:
        RequestError: it is not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:
        raise RequestError(f"{name} is not valid JSON: {error}.", param=name) from None


def check_schema(schema: Any, name: str) -> None:
    """Refuses a schema whose nesting, references or patterns exceed the limits.

    Raises:
        RequestError: it does, or it is no object.
    """
    if not isinstance(schema, dict):
        raise RequestError(f"{name} must be a JSON schema, which is an object.", param=name)
    deepest, references = 0, set()
    for node, depth in _nodes(schema):
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            raise _too_deep(name)
        if not isinstance(node, dict):
            continue
        references |= {str(node[key]) for key in _REFERENCES if key in node}
        _check_patterns_of(node, name)
    if deepest * (len(references) + 1) > MAX_CHAIN:
        raise RequestError(
            f"{name} holds {len(references)} references and is nested {deepest} deep; the product "
            f"may be {MAX_CHAIN:,}. Split the schema or write out fewer definitions.",
            param=name,
        )


def _nodes(root: Any) -> Iterator[tuple[Any, int]]:
    """Every object and list, with its depth; without recursion."""
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        inner = node.values() if isinstance(node, dict) else node
        waiting += [(each, depth + 1) for each in inner if isinstance(each, dict | list)]


def _check_patterns_of(node: dict[str, Any], name: str) -> None:
    pattern, by_name = node.get("pattern"), node.get("patternProperties")
    patterns = [pattern] if isinstance(pattern, str) else []
    patterns += list(by_name) if isinstance(by_name, dict) else []
    for each in patterns:
        _check_pattern(each, name)


def _check_pattern(pattern: str, name: str) -> None:
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise RequestError(
            f"{name} holds a pattern of more than {MAX_PATTERN_BYTES // 1024} KiB.", param=name
        )
    bomb = _REPEATED_REPETITION.search(pattern)
    if bomb is not None:
        # Harmless here, but whoever checks the answer with a backtracking engine pays for it.
        raise RequestError(
            f"{name} repeats a repetition, {bomb[0][:60]!r}: most regex engines take exponential "
            "time for that. One repetition means the same; write only that.",
            param=name,
        )


def _check_choices(choices: Any, name: str) -> None:
    if not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
        raise RequestError(f"{name} must be a list of strings.", param=name)
    if not 0 < len(choices) <= MAX_CHOICES or "" in choices:
        raise RequestError(
            f"{name} must hold 1 to {MAX_CHOICES:,} strings, none of them empty.", param=name
        )


def schemas_of(text: str, name: str) -> tuple[list[Any], str]:
    """The schemas behind `%json` in a Lark grammar, and the grammar without them.

    Raises:
        RequestError: one of them is not JSON, or nested too deeply to be read.
    """
    schemas, rules, end = [], "", 0
    for found in re.finditer(r"%json\s*", text):
        if found.start() < end:
            continue  # within a schema
        rules += text[end : found.start()]
        try:
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
        except RecursionError:
            raise _too_deep(name) from None
        except ValueError as error:
            raise RequestError(f"%json in {name} is not JSON: {error}.", param=name) from None
        schemas.append(schema)
    return schemas, rules + text[end:]


def _check_lark(text: str, name: str) -> None:
    schemas, rules = schemas_of(text, name)
    for schema in schemas:
        check_schema(schema, name)
    if rules.count(":") > MAX_RULES:  # each rule has one
        raise RequestError(f"{name} has more than {MAX_RULES:,} rules.", param=name)
    if _REPEATED_REPETITION.search(rules):
        _check_pattern(rules[:MAX_PATTERN_BYTES], name)


def _too_deep(name: str) -> RequestError:
    return RequestError(f"{name} is nested more than {MAX_DEPTH} deep. Flatten it.", param=name)
