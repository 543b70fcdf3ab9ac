"""The JSON schema of the YAML: for editors, and for saying in words what a setting expects."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from twostroke.config.document import KeyPath
from twostroke.config.schema import Config

VARIABLE = {"type": "string", "pattern": r"\$\{"}


@cache
def plain_schema() -> dict[str, Any]:
    """Pydantic's schema of `Config`, as it stands after variables were filled in."""
    return Config.model_json_schema()


def json_schema() -> dict[str, Any]:
    """The schema for editors: every value may also be a `${VARIABLE}`."""
    schema = _allow_variables(plain_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "twostroke configuration",
    }


def schema_text() -> str:
    """`json_schema` as the shipped file holds it."""
    return json.dumps(json_schema(), indent=2) + "\n"


def lookup(path: KeyPath) -> dict[str, Any] | None:
    """The schema of the value at a path, or None where the path leads out of the schema."""
    node: dict[str, Any] | None = resolve(plain_schema())
    for part in path:
        if node is None:
            return None
        if isinstance(part, int):
            node = node.get("items")
        else:
            other = node.get("additionalProperties")
            node = node.get("properties", {}).get(part, other if isinstance(other, dict) else None)
        node = None if node is None else resolve(node)
    return node


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """Follows `$ref`, keeping what stands beside it."""
    if "$ref" not in node:
        return node
    target: dict[str, Any] = plain_schema()["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}


def describe(node: dict[str, Any]) -> str:
    """What a value must be, in words: `a whole number from 0 to 65535`."""
    node = resolve(node)
    if "$comment" in node:
        return str(node["$comment"])
    if "anyOf" in node:
        return " or ".join(describe(option) for option in node["anyOf"])
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        *most, last = node["enum"]
        return f"one of {', '.join(most)} or {last}" if most else str(last)
    kind = node.get("type")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(node)
    if kind == "array":
        least = f" of at least {node['minItems']}" if node.get("minItems") else ""
        return f"a list{least}, each item {describe(node['items'])}"
    if kind == "string":
        return "text that is not empty" if node.get("minLength") else "text"
    others = {"object": "a mapping of keys to values", "null": "null", "boolean": "true or false"}
    return others.get(str(kind), "a value")


def _range(node: dict[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None:
        return ""
    return f" from {low:g} to {high:g}" if high is not None else f" of at least {low:g}"


def _allow_variables(node: Any) -> Any:
    """Adds the `${VARIABLE}` alternative to every leaf that does not take text anyway."""
    if isinstance(node, list):
        return [_allow_variables(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "properties" in node or "$defs" in node:
        groups = ("properties", "$defs")
        return {
            key: {name: _allow_variables(child) for name, child in value.items()}
            if key in groups
            else value
            for key, value in node.items()
        }
    if node.get("type") == "array":
        return {**node, "items": _allow_variables(node["items"])}
    notes = {key: node[key] for key in ("default", "description", "title") if key in node}
    rule = {key: value for key, value in node.items() if key not in notes}
    if "anyOf" in rule and not any(option.get("type") == "string" for option in rule["anyOf"]):
        return {"anyOf": [*rule["anyOf"], VARIABLE], **notes}
    if "enum" in rule or rule.get("type") in ("integer", "number", "boolean"):
        return {"anyOf": [rule, VARIABLE], **notes}
    return node
