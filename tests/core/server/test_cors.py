"""Browsers' apps: preflights, who may read, and that nobody else may; HEAD and OPTIONS."""

from __future__ import annotations

import pytest

from twostroke.config.server import ServerConfig

APP = "https://app.example:8443"
ASKED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture
def live(serve_echo):
    return serve_echo(server={"cors_origins": [APP, "http://localhost:3000"]})


def preflight(live, path: str = "/v1/chat/completions", origin: str = APP, **more: str):
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return live.ask("OPTIONS", path, None, {"Origin": origin, **ASKED, **named})


def test_a_preflight_is_answered_where_the_origin_is_named(live):
    reply = preflight(live)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["Access-Control-Allow-Origin"] == APP
    assert reply.headers["Access-Control-Allow-Methods"] == "POST"
    assert reply.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert "Access-Control-Allow-Private-Network" not in reply.headers
    assert preflight(live, "/health").headers["Access-Control-Allow-Methods"] == "GET,HEAD"
    local = preflight(live, Access_Control_Request_Private_Network="true")
    assert local.headers["Access-Control-Allow-Private-Network"] == "true"


def test_a_page_reads_answers_streams_and_errors(live):
    for path, body, status in [
        ("/generate", {"prompt": "a"}, 200),
        ("/generate", {"prompt": 5}, 400),
        ("/v1/models", None, 200),
        ("/nowhere", None, 404),
    ]:
        reply = live.ask("GET" if body is None else "POST", path, body, {"Origin": APP.upper()})
        assert reply.status == status
        assert reply.headers["Access-Control-Allow-Origin"] == APP.upper()
        assert reply.headers["Access-Control-Expose-Headers"] == "*"
        assert reply.headers["Vary"] == "Origin"


def test_other_pages_may_neither_ask_nor_read(live):
    for origin in ("https://evil.example", "https://app.example", "null", f"{APP}.evil"):
        asked = preflight(live, origin=origin)
        assert asked.status == 403
        refused = live.post("/generate", {"prompt": "a"}, Origin=origin)
        assert refused.error()["code"] == "origin_not_allowed"
        for reply in (asked, refused):
            assert "Access-Control-Allow-Origin" not in reply.headers
    assert "Access-Control-Allow-Origin" not in live.get("/v1/models").headers


def test_with_keys_only_the_preflight_goes_without_one(serve_echo):
    live = serve_echo(server={"cors_origins": ["*"], "keys": ["secret"]})
    assert preflight(live).status == 204
    refused = live.get("/v1/models", Origin=APP)
    assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (401, APP)
    assert live.get("/v1/models", Origin=APP, Authorization="Bearer secret").status == 200


def test_nothing_is_said_where_nothing_is_configured(serve_echo):
    live = serve_echo(server={"keys": ["secret"]})
    assert preflight(live).status == 401
    reply = live.get("/v1/models", Origin=APP, Authorization="Bearer secret")
    assert not {"Vary", "Access-Control-Allow-Origin"} & reply.headers.keys()


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/openapi.json", "/docs"])
def test_head_is_get_without_a_body(live, path):
    head, got = live.ask("HEAD", path), live.get(path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "TRACE", "PROPFIND"])
def test_other_methods_are_an_error_object(live, method):
    reply = live.ask(method, "/generate")
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert reply.error()["code"] == "method_not_allowed"
    assert live.ask(method, "/nowhere").error()["code"] == "not_found"


@pytest.mark.parametrize(
    ("origins", "said"),
    [
        (["app.example"], "item 0 must be"),
        (["https://a.example", "https://a.example/path"], "item 1 must be"),
        (["https://user@a.example"], "item 0 must be"),
        (["*"], "only be * where there are keys"),
    ],
)
def test_wrong_origins_are_refused(origins, said):
    with pytest.raises(ValueError, match=said.replace("*", r"\*")):
        ServerConfig(cors_origins=origins)
