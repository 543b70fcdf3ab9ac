"""Surfaces of strangers: their routes, their errors, where their clients put a key, clashes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiohttp import web

from twostroke.errors import PluginError
from twostroke.server.all_surfaces import BUILT_IN, all_surfaces
from twostroke.server.answers import gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.fields import QueueFields, check_shape
from twostroke.server.replies import json_reply
from twostroke.server.surface import Route, Surface, check_routes, without_v1


class SayBody(QueueFields):
    text: str


async def say(request: web.Request) -> web.StreamResponse:
    body = check_shape(SayBody, await read_json(request))
    turn = await begin(request, Wanted(None, [body.text], {}, body.scheduled))
    (answer,) = await gather(turn)
    return json_reply({"said": answer.text})


async def fall(request: web.Request) -> web.StreamResponse:
    raise ZeroDivisionError


ACME = Surface(
    name="acme",
    api_version=1,
    summary="a test",
    routes=(
        *without_v1(Route("POST", "/v1/say", say, "Says it.", body=SayBody)),
        Route("GET", "/fall/{height:[0-9]+}", fall, "Falls."),
        Route("GET", "/open", fall, "Falls for everybody.", is_open=True),
    ),
    error_body=lambda error: {"oops": str(error), "why": error.code},
    key_headers=("X-Acme-Key",),
)
KEY = "a-key-for-acme"


@pytest.fixture
def acme(serve_echo):
    return serve_echo(surfaces=all_surfaces({"acme": ACME}), server={"keys": (KEY,)})


def said(text: str) -> str:
    return f"→{text}"


def test_a_strangers_route_answers_with_and_without_its_prefix(acme):
    for path in ("/v1/say", "/say"):
        reply = acme.post(path, {"text": "Hi"}, X_Acme_Key=KEY)
        assert (reply.status, reply.json()) == (200, {"said": said("Hi")})


def test_a_key_may_come_in_the_header_of_any_surface(acme):
    asked = {"prompt": "a", "stream": False}
    assert acme.post("/generate", asked, X_Acme_Key=KEY).body.decode() == said("a")
    assert acme.post("/v1/say", {"text": "a"}, Authorization=f"Bearer {KEY}").status == 200
    both = {"X_Acme_Key": KEY, "Authorization": "Bearer another"}
    assert acme.post("/v1/say", {"text": "a"}, **both).status == 200
    refused = acme.post("/generate", asked, X_Acme_Key="another")
    assert refused.status == 401
    assert "X-Acme-Key" in refused.error()["message"]
    assert acme.post("/generate", asked, X_Other_Key=KEY).status == 401


def test_errors_look_like_those_of_the_surface_that_was_asked(acme):
    cases = [
        (acme.post("/say", {"text": 5}, X_Acme_Key=KEY), 400, "invalid_type"),
        (acme.post("/say", "{", X_Acme_Key=KEY), 400, "invalid_request"),
        (acme.post("/say", {"text": "a"}), 401, "invalid_api_key"),
        (acme.get("/v1/say", X_Acme_Key=KEY), 405, "method_not_allowed"),
        (acme.post("/fall/9", {}, X_Acme_Key=KEY), 405, "method_not_allowed"),
        (acme.get("/fall/9", X_Acme_Key=KEY), 500, "engine_error"),
    ]
    for reply, status, code in cases:
        assert (reply.status, reply.json()["why"]) == (status, code)
        assert reply.json().keys() == {"oops", "why"}
    assert acme.post("/v1/completions", {}, X_Acme_Key=KEY).error()["param"] == "prompt"
    assert acme.get("/fall/deep", X_Acme_Key=KEY).error()["code"] == "not_found"


def test_an_open_route_wants_no_key(acme):
    assert acme.get("/open").status == 500
    assert acme.get("/fall/9").status == 401


def routes(*paths: str) -> Surface:
    return replace(ACME, routes=tuple(Route("GET", path, fall, "Falls.") for path in paths))


@pytest.mark.parametrize(
    "theirs", ["/v1/models", "/models", "/models/{name}", "/v1/models/{which:[a-z]{2,3}}"]
)
def test_two_surfaces_with_one_route_are_refused_by_name(theirs):
    with pytest.raises(PluginError, match="'openai' and 'acme' both answer GET /"):
        all_surfaces({"acme": routes(theirs)})


def test_two_surfaces_of_one_name_are_refused():
    with pytest.raises(PluginError, match="two surfaces are named 'plain'"):
        all_surfaces({"plain": replace(ACME, name="plain")})


def test_other_methods_and_other_paths_are_no_clash():
    check_routes([*BUILT_IN, routes("/generate", "/v1/models/{id}/card")])
    with pytest.raises(PluginError, match="'acme' and 'acme' both answer GET /same"):
        check_routes([routes("/same", "/same")])
