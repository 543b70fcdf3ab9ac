"""docs/http.md names every route, field and error, and its examples are answered as it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from twostroke import errors
from twostroke.server.fields import QueueFields, SamplingFields
from twostroke.server.surfaces.openai.chat_fields import ChatBody
from twostroke.server.surfaces.openai.completions import CompletionBody
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.shapes import OpenAIFields
from twostroke.server.surfaces.openai.structure import FIELDS
from twostroke.server.surfaces.openai.unsupported import HARMLESS
from twostroke.server.surfaces.plain.generate import GenerateBody

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/http.md").read_text(encoding="utf-8")
NAME = "smollm2-135m-instruct"
# What each of OpenAI's routes reads of a body beside its schema.
RAW = {"n"}


def section(title: str) -> str:
    """What stands below a heading, to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def first_column(text: str) -> set[str]:
    """The words in backticks in the first column of the tables of a text."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


COMMON = first_column(section("Fields of every route"))
OPENAI = first_column(section("Fields of both OpenAI routes"))


@pytest.mark.parametrize(
    ("title", "shape", "others"),
    [
        ("Fields of `/generate`", GenerateBody, set()),
        ("Fields of `/v1/chat/completions`", ChatBody, OPENAI),
        ("Fields of `/v1/completions`", CompletionBody, OPENAI),
        ("Fields of `/v1/responses`", ResponsesBody, set(FIELDS)),
    ],
)
def test_every_field_of_a_route_is_named(title, shape, others):
    own = first_column(section(title))
    assert not own & (COMMON | others), "named twice"
    schema = set(shape.model_fields)
    told = COMMON | others | own
    assert schema - told == set()
    assert told - schema - RAW == set()


def test_what_is_common_is_common():
    assert set(SamplingFields.model_fields) | set(QueueFields.model_fields) <= COMMON
    assert set(FIELDS) <= OPENAI
    assert OPENAI - set(FIELDS) <= set(OpenAIFields.model_fields)


def test_fields_that_are_refused_are_those_of_no_route():
    told = set(re.findall(r"`([^`]+)`", section("Fields that are refused")))
    shapes = (ChatBody, CompletionBody)
    assert told == HARMLESS.keys() - {name for shape in shapes for name in shape.model_fields}


def test_every_route_is_named(live):
    told = {
        tuple(each.split(" ")) for each in first_column(section("The HTTP API")) if " /" in each
    }
    routes = {
        (route.method, route.resource.canonical)
        for route in live.endpoint._app.router.routes()
        # Those of Ollama's surface have a page of their own.
        if route.method != "HEAD" and not route.resource.canonical.startswith("/api/")
    }
    assert told <= routes
    assert {(m, path) for m, path in routes if (m, f"/v1{path}") not in routes} == told


def codes() -> Iterator[str]:
    """Every code that the server may answer with."""
    yield from ("not_found", "method_not_allowed", "expectation_failed")  # aiohttp's own
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.TwostrokeError):
            is_of_requests = "status" in vars(each) or issubclass(each, errors.RequestError)
            if is_of_requests and each is not errors.TwostrokeError:
                yield each.code
    for room in ("server", "api_keys", "engine", "grammar", "model", "text"):
        for path in (ROOT / "core/twostroke" / room).rglob("*.py"):
            yield from re.findall(r'\bcode="([a-z_]+)"', path.read_text(encoding="utf-8"))


def test_every_error_code_is_named():
    assert first_column(section("Errors")) == set(codes())


EXAMPLES = re.findall(r"```bash\n(curl .*?)\n```\n\n```(\w+)\n(.*?)\n```", PAGE, re.S)


def test_every_curl_has_an_answer():
    assert len(EXAMPLES) == PAGE.count("```bash\n") > 8


@pytest.fixture(scope="module")
def named(live_as):
    return live_as(NAME)


def asked(command: str) -> tuple[str, str, dict[str, str], str | None]:
    """Method, path, headers and body of a curl command."""
    words = iter(shlex.split(command)[1:])
    headers, data, url = {}, None, ""
    for word in words:
        if word == "-d":
            data = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word != "-N":
            url = word
    path = url.removeprefix("127.0.0.1:8080")
    return "GET" if data is None else "POST", path, headers, data


def paths(value: Any, before: str = "") -> set[str]:
    """The paths of all keys in a value; an empty object stands for any."""
    if isinstance(value, dict):
        found = {f"{before}.{key}" for key in value}
        return found.union(*(paths(value[key], f"{before}.{key}") for key in value))
    if isinstance(value, list):
        return set().union(*(paths(each, f"{before}[]") for each in value))
    return set()


def elided(value: Any) -> set[str]:
    """The paths of the objects that the page leaves empty."""
    if isinstance(value, dict):
        own = {f".{key}" for key, each in value.items() if each == {}}
        below = {f".{key}{path}" for key, each in value.items() for path in elided(each)}
        return own | below
    if isinstance(value, list):
        items = [elided(each) for each in value]
        empty = {"[]"} if {} in value else set()
        return empty.union(*({f"[]{path}" for path in each} for each in items))
    return set()


def same_shape(told: Any, answered: Any) -> bool:
    """Whether both have the same keys, but for what is below an object that was left empty."""
    hidden = elided(told)
    shown = {
        path
        for path in paths(answered)
        if not any(path.startswith((f"{each}.", f"{each}[")) for each in hidden)
    }
    return paths(told) == shown


def events(kind: str, text: str) -> list[Any]:
    if kind == "sse":
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.strip()]
        assert lines.pop().strip() == "[DONE]"
        return [json.loads(line) for line in lines]
    if kind == "events":
        return [json.loads(each.split("\ndata: ")[1]) for each in text.strip().split("\n\n")]
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("command", "kind", "answer"), EXAMPLES, ids=lambda each: each[:60])
def test_an_example_is_answered_as_the_page_says(named, command, kind, answer):
    reply = named.ask(*_in_order(asked(command)))
    assert (reply.status == 400) == ('{"error"' in answer), reply.body
    types = {"text": "text/plain", "ndjson": "application/x-ndjson", "sse": "text/event-stream"}
    types["events"] = types["sse"]
    assert reply.headers["Content-Type"].startswith(types.get(kind, "application/json"))
    body = reply.body.decode()
    if kind == "json":
        assert same_shape(json.loads(answer), json.loads(body))
        assert '{"error"' not in answer or json.loads(answer) == json.loads(body)
    elif kind != "text":
        told, answered = events(kind, answer), events(kind, body)
        for each in told:
            assert any(same_shape(each, other) for other in answered), each
        for other in answered:
            assert any(same_shape(each, other) for each in told), other


def _in_order(asked: tuple[str, str, dict[str, str], str | None]) -> tuple[Any, ...]:
    method, path, headers, data = asked
    return method, path, data, headers
