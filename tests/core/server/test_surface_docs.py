"""The surface in docs/plugins.md is complete: it serves as it stands there."""

from __future__ import annotations

import http.client
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest

from twostroke.config.schema import ServerConfig
from twostroke.testing.serving import EchoServer

GUIDE = (Path(__file__).resolve().parents[3] / "docs/plugins.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    section = GUIDE.split("\n## A surface\n")[1]
    plugin = types.ModuleType("say")
    source = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(compile(source, "docs/plugins.md", "exec", dont_inherit=True), vars(plugin))
    config = ServerConfig(port=0, keys=("secret",))
    with EchoServer(tmp_path_factory.mktemp("said"), [plugin], config) as server:
        yield server


def post(server: EchoServer, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/v1/say", json.dumps(body), named)
    reply = connection.getresponse()
    return reply.status, json.load(reply)


def test_it_answers(served):
    assert post(served, {"text": "Hi", "most": 2}, X_Say_Key="secret") == (200, {"said": "→H"})


def test_its_errors_are_its_own(served):
    status, said = post(served, {"text": "Hi", "least": 1}, Authorization="Bearer secret")
    assert (status, said["code"]) == (400, "unknown_parameter")
    assert "'least' is not a field" in said["wrong"]
    assert post(served, {"text": "Hi"})[0] == 401
