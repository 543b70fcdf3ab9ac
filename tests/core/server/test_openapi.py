"""`/openapi.json` is valid, tells of every route, and its examples work; `/docs` stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from twostroke.errors import RequestError
from twostroke.server.all_surfaces import BUILT_IN
from twostroke.server.openapi import openapi_document

PAGE = (Path(__file__).resolve().parents[3] / "docs/http.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(live) -> dict[str, Any]:
    reply = live.get("/openapi.json")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    return reply.json()


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def test_it_is_valid(document):
    validate(document)
    assert document["openapi"] == "3.1.0"


def test_every_route_is_in_it_under_its_first_path(live, document):
    described = operations(document)
    served = {
        (route.method, re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.resource.canonical))
        for route in live.endpoint._app.router.routes()
        if route.method != "HEAD"
    }
    aliases = {
        (method, alias)
        for (method, _), operation in described.items()
        for alias in re.findall(r"(/\S*?)[,.](?:\s|$)", operation.get("description", ""))
    }
    assert described.keys() | aliases == served
    assert not described.keys() & aliases


def test_ids_are_unique_and_errors_have_their_surfaces_shape(document):
    found = operations(document)
    ids = [operation["operationId"] for operation in found.values()]
    assert len(set(ids)) == len(ids)
    asked = found["POST", "/v1/chat/completions"]["responses"]
    assert asked["400"] == {"$ref": "#/components/responses/openai_error_400"}
    shape = document["components"]["schemas"]["openai_error"]["properties"]["error"]
    assert shape["properties"]["param"]["type"] == ["string", "null"]
    assert "401" not in found["GET", "/health"]["responses"]


def test_a_surface_has_errors_of_its_own_shape():
    def shape(error: RequestError) -> dict[str, Any]:
        return {"oops": str(error), **({"at": [error.param]} if error.param else {})}

    surface = replace(BUILT_IN[0], name="an api", error_body=shape)
    schema = openapi_document([surface], wants_key=True)["components"]["schemas"]["an_api_error"]
    assert schema["required"] == ["oops"]
    assert schema["properties"] == {"oops": {"type": "string"}, "at": {"type": "array"}}


def test_statuses_of_a_route_are_all_there(document):
    found = operations(document)
    assert set(found["POST", "/api/push"]["responses"]) & {"200", "501"} == {"501"}
    assert "501" in found["POST", "/api/chat"]["responses"]
    health = found["GET", "/health"]["responses"]
    assert health["503"]["content"] == health["200"]["content"]


def test_keys_are_told_where_they_are_wanted():
    surfaces = [replace(BUILT_IN[0], key_headers=("Authorization", "X-Acme-Key"))]
    open_one = openapi_document(surfaces, wants_key=False)
    closed = openapi_document(surfaces, wants_key=True)
    assert open_one["security"] == [{}]
    assert closed["security"] == [{"bearer": []}, {"x-acme-key": []}]
    told = closed["components"]["securitySchemes"]["x-acme-key"]
    assert told == {"type": "apiKey", "in": "header", "name": "X-Acme-Key"}


def test_the_statuses_are_those_of_the_documentation(document):
    rows = re.findall(r"^\| `\w+` \| (\d+) \|", PAGE.split("## Errors")[1], re.M)
    told = {int(status) for status in rows} - {405}  # that is for methods that are not described
    found = {
        int(status)
        for operation in operations(document).values()
        for status in operation["responses"]
    }
    assert told - found == set()


def test_each_example_works_and_answers_in_a_type_that_is_told(live, document):
    examples = 0
    for (method, path), operation in operations(document).items():
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None or "{" in path:
            continue
        assert "example" in content, path
        reply = live.ask(method, path, content["example"])
        assert reply.status == 200, (path, reply.body)
        kind = reply.headers["Content-Type"].split(";")[0]
        assert kind in operation["responses"]["200"]["content"], path
        examples += 1
    assert examples >= 3


def test_fields_say_the_same_as_the_documentation(document):
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", PAGE, re.M)
    meanings: dict[str, set[str]] = {}
    for name, linked in rows:
        meaning = re.sub(r" \(\[.*?\]\(.*?\)\)", "", linked)
        meanings.setdefault(name, set()).add(meaning)
    compared = 0
    for path in ("/generate", "/v1/chat/completions", "/v1/completions"):
        asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = asked["schema"]["$ref"].split("/")[-1]
        for field, schema in document["components"]["schemas"][name]["properties"].items():
            if field in meanings and "description" in schema:
                assert " ".join(schema["description"].split()) in meanings[field], field
                compared += 1
            assert "description" in schema or field == "model", field
    assert compared > 60


def test_the_description_and_the_page_need_no_key(serve_echo):
    live = serve_echo(server={"keys": ["secret"]})
    assert live.get("/openapi.json").json()["security"] == [{"bearer": []}, {"x-api-key": []}]
    page = live.get("/docs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    files = re.findall(r'(?:href|src)="(/[^"]+)"', page.body.decode())
    assert {"/docs/docs.css", "/docs/docs.js", "/openapi.json"} <= set(files)
    for file in files:
        assert live.get(file).status == 200, file


def test_the_page_asks_for_nothing_from_elsewhere(live):
    page = live.get("/docs")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for path in ("/docs", "/docs/docs.css", "/docs/docs.js"):
        assert "//" not in re.sub(r"^\s*//.*$", "", live.get(path).body.decode(), flags=re.M)
    assert live.get("/docs/other.js").error()["code"] == "not_found"


def test_json_is_compact_and_the_same_each_time(live):
    first, again = live.get("/openapi.json").body, live.get("/openapi.json").body
    assert (
        first
        == again
        == json.dumps(json.loads(first), ensure_ascii=False, separators=(",", ":")).encode()
    )
