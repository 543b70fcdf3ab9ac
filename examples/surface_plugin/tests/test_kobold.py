"""The surface on a server of this machine: `pytest` in this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import kobold
import pytest

from twostroke.testing.serving import EchoServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    with EchoServer(Path(tmp_path_factory.mktemp("echo")), plugins=[kobold]) as started:
        yield started


def post(server: EchoServer, path: str, body: dict[str, Any]) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body))
    return connection.getresponse()


def test_an_answer_is_whole(server: EchoServer) -> None:
    reply = post(server, "/api/v1/generate", {"prompt": "Once", "max_length": 4, "use_memory": 1})
    assert json.load(reply) == {"results": [{"text": "→Onc", "finish_reason": "length"}]}


def test_an_answer_is_streamed(server: EchoServer) -> None:
    reply = post(server, "/api/extra/generate/stream", {"prompt": "ab", "stop_sequence": ["b"]})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in reply if line.startswith(b"data: ")]
    assert "".join(event["token"] for event in events) == "→a"
    assert events[-1] == {"token": "", "finish_reason": "stop"}


def test_errors_are_in_its_shape(server: EchoServer) -> None:
    reply = post(server, "/api/v1/generate", {"prompt": "a", "top_p": "high"})
    assert reply.status == 400
    detail = json.load(reply)["detail"]
    assert detail["type"] == "invalid_type"
    assert "top_p must be a valid number" in detail["msg"]
