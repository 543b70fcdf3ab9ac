"""The errors of a route: with which statuses, and in which shape."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from twostroke.errors import RequestError
from twostroke.server.surface import ErrorBody, Route

_ALWAYS = {
    401: "No key, or one that is not known.",
    403: "This key or this web page may not ask for that.",
    404: "No such route, or no such model.",
    417: "An Expect header other than 100-continue.",
    429: "The key has asked for too much; `Retry-After` says when to try again.",
    500: "A fault of the engine or the server; its log has it under the request's id.",
    503: "Full, loading or stopping; `Retry-After` says when to try again.",
}
_WITH_BODY = {
    400: "The body, a field or the prompt is wrong; the message says what to do.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the server takes.",
    415: "The body is multipart, or in an encoding that is not known.",
    504: "The request took longer than it was given.",
}
# Two errors that between them fill every part of an error's body.
_SAMPLES = (RequestError("what was wrong", param="a_field"), RequestError("what was wrong"))


def statuses_of(route: Route) -> dict[int, str]:
    """The statuses of errors that a route may answer with, and when it does."""
    found = {**_ALWAYS, **(_WITH_BODY if route.body is not None else {})}
    found |= {status: f"{HTTPStatus(status).phrase}." for status in route.error_statuses}
    if route.is_open:
        del found[401]
    return dict(sorted(found.items()))


def error_schema(shape: ErrorBody) -> dict[str, Any]:
    """The JSON schema of what `shape` makes of an error."""
    return _merged([_schema(shape(error)) for error in _SAMPLES])


def _schema(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        properties = {name: _schema(each) for name, each in value.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names.get(type(value), "array")}


def _merged(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """A schema that takes what any of them takes; they are of samples of one shape."""
    if all(schema["type"] == "object" for schema in schemas):
        names = dict.fromkeys(name for schema in schemas for name in schema["properties"])
        having = {
            name: [s["properties"][name] for s in schemas if name in s["properties"]]
            for name in names
        }
        required = [name for name in names if len(having[name]) == len(schemas)]
        properties = {name: _merged(each) for name, each in having.items()}
        return {"type": "object", "properties": properties, "required": required}
    types = list(dict.fromkeys(schema["type"] for schema in schemas))
    return {"type": types[0] if len(types) == 1 else types}
