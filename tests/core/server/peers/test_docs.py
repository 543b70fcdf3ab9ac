"""docs/anthropic.md and docs/ollama.md: every route, field and error, and examples that run."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import pytest

from twostroke.errors import TwostrokeError
from twostroke.server.fields import QueueFields, SamplingFields
from twostroke.server.surfaces import anthropic, ollama
from twostroke.server.surfaces.anthropic.fields import MessagesBody, PromptFields
from twostroke.server.surfaces.anthropic.shapes import error_body
from twostroke.server.surfaces.ollama.fields import AnswerFields, OllamaChatBody, OllamaGenerateBody
from twostroke.server.surfaces.ollama.models import API_VERSION
from twostroke.server.surfaces.ollama.options import Options

from ..test_http_docs import ROOT, asked, first_column, same_shape

NAME = "smollm2-135m-instruct"
PAGES = {
    name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("anthropic", "ollama")
}
EXAMPLES = [
    pytest.param(*example, id=f"{name}: {example[0][:70]}")
    for name, page in PAGES.items()
    for example in re.findall(r"```bash\n(curl .*?)\n```\n\n```(\w+)\n(.*?)\n```", page, re.S)
]


def fields(page: str, title: str) -> set[str]:
    """The words of the tables below a heading, to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGES[page], re.M | re.S)
    assert found, title
    return first_column(found[1])


def test_every_field_of_anthropics_is_named():
    assert fields("anthropic", "Fields of a conversation") == set(PromptFields.model_fields)
    of_every_route = set(SamplingFields.model_fields) | set(QueueFields.model_fields)
    own = set(MessagesBody.model_fields) - set(PromptFields.model_fields) - of_every_route
    told = fields("anthropic", "Fields of `/v1/messages`")
    assert told == own | {"max_tokens"}


def test_every_field_of_ollamas_is_named():
    shared = set(AnswerFields.model_fields)
    assert fields("ollama", "Fields of both answering routes") == shared
    assert fields("ollama", "Options") == set(Options.model_fields)
    for title, shape in (
        ("Fields of `/api/chat`", OllamaChatBody),
        ("Fields of `/api/generate`", OllamaGenerateBody),
    ):
        assert fields("ollama", title) == set(shape.model_fields) - shared


@pytest.mark.parametrize("surface", [anthropic.SURFACE, ollama.SURFACE], ids=lambda each: each.name)
def test_every_route_is_named(surface):
    told = {word for word in first_column(PAGES[surface.name]) if " /" in word}
    routes = {f"{route.method} {route.path}" for route in surface.routes}
    assert told - {"GET /v1/models", "GET /v1/models/{id}"} == routes


def test_every_kind_of_anthropics_errors_is_named():
    kinds = set()
    for status in HTTPStatus:
        error = TwostrokeError("x")
        error.status = status
        kinds.add(error_body(error)["error"]["type"])
    assert fields("anthropic", "Errors") == kinds


def test_the_version_is_the_one_that_is_told():
    assert f'{{"version":"{API_VERSION}"}}' in PAGES["ollama"]


@pytest.fixture(scope="module")
def named(live_as):
    return live_as(NAME)


def values(kind: str, text: str) -> list[object]:
    """The objects of an answer, one a line or event; an event's name is in its data too."""
    if kind == "sse":
        events = [event.split("\ndata: ") for event in text.strip().split("\n\n")]
        found = [(name.removeprefix("event: "), json.loads(data)) for name, data in events]
        assert all(data["type"] == name for name, data in found)
        return [data for _, data in found]
    return [json.loads(line) for line in text.splitlines()]


def test_every_curl_has_an_answer():
    assert len(EXAMPLES) == sum(page.count("```bash\n") for page in PAGES.values()) > 10


@pytest.mark.parametrize(("command", "kind", "answer"), EXAMPLES)
def test_an_example_is_answered_as_the_page_says(named, command, kind, answer):
    method, path, headers, data = asked(command)
    reply = named.ask(method, path, data, headers)
    is_error = '"error"' in answer
    assert (reply.status == 400) == is_error, reply.body
    types = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}
    assert reply.headers["Content-Type"].startswith(types.get(kind, "application/json"))
    told, answered = values(kind, answer), values(kind, reply.body.decode())
    if is_error:
        assert told == answered
    for each in told:
        assert any(same_shape(each, other) for other in answered), each
    for other in answered:
        assert any(same_shape(each, other) for each in told), other
