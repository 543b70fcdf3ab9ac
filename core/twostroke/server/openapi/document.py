"""Puts the OpenAPI document together. Facts of the format: https://spec.openapis.org/oas/v3.1.1."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from twostroke.server.openapi.failures import error_schema, statuses_of
from twostroke.server.openapi.shapes import Shapes
from twostroke.server.surface import Route, Surface

_VARIABLE = re.compile(r"\{([^{}:]+)(?::(?:[^{}]|\{[^{}]*\})*)?\}")

_EVENTS = "text/event-stream"
_ABOUT = (
    "Language models on ONNX Runtime. Paths with /v1 in front answer without it too, where their "
    "description says so."
)


def openapi_document(surfaces: Sequence[Surface], *, wants_key: bool) -> dict[str, Any]:
    """The whole document; `wants_key` says whether requests need a key here."""
    shapes = Shapes(route for surface in surfaces for route in surface.routes)
    paths: dict[str, dict[str, Any]] = {}
    for surface in surfaces:
        for route in surface.routes:
            operations = paths.setdefault(_plain(route.path), {})
            operations[route.method.lower()] = _operation(surface, route, shapes)
    schemes = _security_schemes(surfaces)
    errors = {_error_name(surface): error_schema(surface.error_body) for surface in surfaces}
    failures = {name: answer for each in surfaces for name, answer in _failures(each).items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "twostroke",
            "version": importlib.metadata.version("twostroke"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": each.name, "description": each.summary} for each in surfaces],
        "security": [{name: []} for name in schemes] if wants_key else [{}],
        "paths": paths,
        "components": {
            "schemas": {**shapes.components, **errors},
            "responses": failures,
            "securitySchemes": schemes,
        },
    }


def _operation(surface: Surface, route: Route, shapes: Shapes) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "tags": [surface.name],
        "summary": route.summary,
        "responses": {**_successes(route, shapes), **_failures_of(surface, route)},
    }
    if route.aliases:
        operation["description"] = f"Also at {', '.join(map(_plain, route.aliases))}."
    if names := [found[1] for found in _VARIABLE.finditer(route.path)]:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if route.body is not None:
        content = {"schema": shapes.body_of(route)}
        if route.example is not None:
            content["example"] = dict(route.example)
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.is_open:
        operation["security"] = []
    return operation


def _plain(path: str) -> str:
    """aiohttp's pattern without its expressions, as OpenAPI has it."""
    return _VARIABLE.sub(r"{\1}", path)


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _VARIABLE.sub(r"\1", route.path))
    return "_".join([route.method.lower(), *words])


def _successes(route: Route, shapes: Shapes) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    if route.reply is not None:
        whole["application/json"] = {"schema": shapes.reply_of(route)}
    answers = {str(status): dict(whole) for status in route.reply_statuses}
    for kind in route.content_types:
        # What is an event's schema and what that of a whole stream is not told apart before 3.2.
        schema = {} if kind == _EVENTS else {"type": "string"}
        answers["200"][kind] = {"schema": schema}
    return {
        status: {"description": HTTPStatus(int(status)).phrase, "content": content}
        for status, content in answers.items()
    }


def _failures_of(surface: Surface, route: Route) -> dict[str, Any]:
    return {
        str(status): {"$ref": f"#/components/responses/{_failure_name(surface, status)}"}
        for status in statuses_of(route)
        if status not in route.reply_statuses
    }


def _failures(surface: Surface) -> dict[str, Any]:
    """The errors that any route of a surface may answer with, by name."""
    schema = {"$ref": f"#/components/schemas/{_error_name(surface)}"}
    content = {"application/json": {"schema": schema}}
    found = {
        status: when for route in surface.routes for status, when in statuses_of(route).items()
    }
    return {
        _failure_name(surface, status): {"description": when, "content": content}
        for status, when in sorted(found.items())
    }


def _failure_name(surface: Surface, status: int) -> str:
    return f"{_error_name(surface)}_{status}"


def _error_name(surface: Surface) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]', '_', surface.name)}_error"


def _security_schemes(surfaces: Sequence[Surface]) -> dict[str, Any]:
    """One for each header in which a key is taken, by the name of the header."""
    headers = {header.lower(): header for each in surfaces for header in each.key_headers}
    schemes: dict[str, Any] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for lower in sorted(headers.keys() - {"authorization"}):
        schemes[lower] = {"type": "apiKey", "in": "header", "name": headers[lower]}
    return schemes
