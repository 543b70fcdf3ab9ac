"""Rules for the arguments of one function, in the style that a family writes them.

Each function here answers rules of llguidance's Lark dialect; `args_NUMBER` is the first. Arguments
that are written one by one come in the order of the schema, those that may be left out where they
stand (tags) or behind the others (Python). Free text between tags follows no `pattern`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from twostroke.grammar.compiler import JSON_OPTIONS
from twostroke.text.parsers.spec import ArgumentTags, CallForm, CallStyle
from twostroke.text.parsers.tagged_values import types_of

_SHAPES = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_DEFINITIONS = ("$defs", "definitions")
_PYTHON_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}

Literal = Callable[[str], str]
"""Writes a text as a sequence of strings and control tokens."""


def argument_rules(
    form: CallForm, number: int, schema: Mapping[str, Any], literal: Literal
) -> Iterator[str]:
    """The rules for the arguments that `schema` describes."""
    if form.style is CallStyle.TAGGED and form.argument is not None:
        yield from _tagged(form.argument, number, schema, literal)
    elif form.style is CallStyle.PYTHON:
        yield from _python(number, schema)
    else:
        whole = dict(schema)
        if not whole.keys() & _SHAPES:
            whole["type"] = "object"
        yield f"args_{number}: {json_rule(whole)}"


def _tagged(
    tags: ArgumentTags, number: int, schema: Mapping[str, Any], literal: Literal
) -> Iterator[str]:
    properties, required = _properties(schema)
    names = [f"arg_{number}_{i}" for i in range(len(properties))]
    parts = [
        name if key in required else f"{name}?" for name, key in zip(names, properties, strict=True)
    ]
    yield f"args_{number}: {' '.join(parts) or _EMPTY}"
    for name, (key, value) in zip(names, properties.items(), strict=True):
        head = literal(tags.before_name + key + tags.before_value)
        yield f"{name}: {head} {name}_value"
        texts = _texts(value)
        if texts:
            choices = " | ".join(_quoted(text + tags.after) for text in texts)
            yield f"{name}_value: {choices}"
        elif "string" in types_of(value):
            yield f"{name}_value[suffix={_quoted(tags.after)}]: /(.|\\n)*/"
        else:
            yield f"{name}_value: {name}_json {literal(tags.after)}"
            yield f"{name}_json: {json_rule(_within(schema, value))}"


def _python(number: int, schema: Mapping[str, Any]) -> Iterator[str]:
    properties, required = _properties(schema)
    keys = sorted(properties, key=lambda key: key not in required)  # stable
    names = [f"arg_{number}_{i}" for i in range(len(keys))]
    num_required = sum(key in required for key in keys)
    if num_required:
        others = "".join(f' (", " {name})?' for name in names[num_required:])
        yield f"args_{number}: " + ' ", " '.join(names[:num_required]) + others
    else:
        # Any of them, with commas between those that are there.
        begins = [
            name + "".join(f' (", " {other})?' for other in names[i + 1 :])
            for i, name in enumerate(names)
        ]
        yield f"args_{number}: {' | '.join([*begins, _EMPTY])}"
    for name, key in zip(names, keys, strict=True):
        yield f"{name}: {_quoted(key + '=')} {name}_value"
        types = types_of(properties[key])
        if types and types <= _PYTHON_WORDS.keys():
            yield f"{name}_value: {' | '.join(_PYTHON_WORDS[each] for each in sorted(types))}"
        else:
            yield f"{name}_value: {json_rule(_within(schema, properties[key]))}"


_EMPTY = '""'


def _properties(schema: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    found, required = schema.get("properties"), schema.get("required")
    properties = dict(found) if isinstance(found, Mapping) else {}
    needed = [key for key in required if key in properties] if isinstance(required, list) else []
    return properties, frozenset(needed)


def _texts(schema: Any) -> list[str]:
    """The texts that a schema lists; none where it lists something else or nothing."""
    if not isinstance(schema, Mapping):
        return []
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    is_texts = isinstance(listed, list) and all(isinstance(each, str) for each in listed)
    return list(listed or ()) if is_texts else []


def _within(schema: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The schema of one argument, with the definitions that it may refer to."""
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    return {**definitions, **value} if isinstance(value, Mapping) else definitions


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON that follows a schema, as a part of a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
