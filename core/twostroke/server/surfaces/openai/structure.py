"""What an answer must look like, as OpenAI's and vLLM's clients ask for it.

| field | constraint |
|---|---|
| `response_format` `{"type": "text"}` | none |
| `response_format` `{"type": "json_object"}` | any JSON object |
| `response_format` `{"type": "json_schema", "json_schema": {"schema": …}}` | it, `strict` or not |
| `structured_outputs` with `json`, `json_object`, `regex`, `choice` or `grammar` | vLLM's |
| `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` | vLLM's older names |
| `json_schema` | llama.cpp's: a schema |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.types import Constraint, ConstraintKind

_FORMATS = ("text", "json_object", "json_schema")
_GUIDED = {
    "guided_json": ConstraintKind.JSON_SCHEMA,
    "guided_regex": ConstraintKind.REGEX,
    "guided_choice": ConstraintKind.CHOICE,
    "guided_grammar": ConstraintKind.GRAMMAR,
}
_STRUCTURED = {
    "json": ConstraintKind.JSON_SCHEMA,
    "json_object": ConstraintKind.JSON_OBJECT,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.GRAMMAR,
}


class StructureFields(BaseModel):
    """The fields of a body that may ask for a constraint; `asked_constraint` checks them."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    response_format: Any = None
    """OpenAI's: `text`, `json_object` or `json_schema`"""
    structured_outputs: Any = None
    """vLLM's: one of `json`, `json_object`, `regex`, `choice`, `grammar`"""
    guided_json: Any = None
    """vLLM's older name of a schema"""
    guided_regex: Any = None
    """vLLM's older name of a pattern"""
    guided_choice: Any = None
    """vLLM's older name of a list of answers"""
    guided_grammar: Any = None
    """vLLM's older name of a grammar"""
    json_schema: Any = None
    """llama.cpp's name"""


FIELDS = tuple(StructureFields.model_fields)


def asked_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """The constraint that a body asks for, by whichever name.

    Raises:
        RequestError: several, or one that is not understood.
    """
    found = [
        (field, kind, value)
        for field, kind, value in (*_formats(body), *_structured(body), *_others(body))
        if value is not None
    ]
    if len(found) > 1:
        names = " and ".join(field for field, _, _ in found)
        raise RequestError(
            f"{names} are both there; an answer follows one of them. Leave the others out.",
            param=found[1][0],
        )
    for field, kind, value in found:
        return constraint_from({kind: value}, {kind: field})
    return None


_Asked = tuple[str, ConstraintKind, Any]


def _formats(body: Mapping[str, Any]) -> list[_Asked]:
    asked = _object(body, "response_format")
    if asked is None:
        return []
    kind = asked.get("type")
    if kind not in _FORMATS:
        raise RequestError(
            f"response_format.type must be one of {', '.join(_FORMATS)}.",
            param="response_format.type",
        )
    if kind == "text":
        return []
    if kind == "json_object":
        return [("response_format", ConstraintKind.JSON_OBJECT, True)]
    wrapped = _object(asked, "json_schema") or {}
    if wrapped.get("schema") is None:
        raise RequestError(
            "response_format.json_schema.schema is missing: give a JSON schema.",
            param="response_format.json_schema.schema",
        )
    field = "response_format.json_schema.schema"
    return [(field, ConstraintKind.JSON_SCHEMA, _schema(wrapped["schema"], field))]


def _structured(body: Mapping[str, Any]) -> list[_Asked]:
    asked = _object(body, "structured_outputs") or {}
    unknown = [
        name for name, value in asked.items() if value is not None and name not in _STRUCTURED
    ]
    if unknown:
        raise RequestError(
            f"structured_outputs.{unknown[0][:100]} is not supported; known are "
            f"{', '.join(_STRUCTURED)}.",
            param=f"structured_outputs.{unknown[0][:100]}",
            code="unsupported_parameter",
        )
    return [
        (f"structured_outputs.{name}", kind, asked.get(name)) for name, kind in _STRUCTURED.items()
    ]


def _others(body: Mapping[str, Any]) -> list[_Asked]:
    guided = [(name, kind, body.get(name)) for name, kind in _GUIDED.items()]
    schema = body.get("json_schema")
    schema = None if schema == {} else schema  # as llama.cpp takes it
    return [*guided, ("json_schema", ConstraintKind.JSON_SCHEMA, schema)]


def _schema(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{field} must be a JSON schema, which is an object.", param=field)
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise RequestError(f"{name} must be an object.", param=name)
    return value
