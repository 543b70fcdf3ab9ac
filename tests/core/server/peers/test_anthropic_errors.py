"""What Anthropic's clients are refused, and how they are told."""

from __future__ import annotations

import anthropic
import pytest

from .asking import ask, user

ADD = {"name": "add", "input_schema": {"type": "object", "properties": {}}}


def client_of(server, **more):
    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **more})


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
BAD = {
    "messages[0].content[1]": {"messages": [user([{"type": "text", "text": "a"}, IMAGE])]},
    "messages[0].content[0].text": {"messages": [user([{"type": "text", "text": 5}])]},
    "messages[0].content": {"messages": [user([])]},
    "messages[0].role": {"messages": [{"role": "robot", "content": "x"}]},
    "messages[0]": {"messages": [{"role": "assistant", "content": "It"}]},
    "messages": {"messages": []},
    "max_tokens": {"max_tokens": "many"},
    "system[0]": {"system": [IMAGE]},
    "tools[0].name": {"tools": [{**ADD, "name": "a b"}]},
    "tools[0].input_schema": {"tools": [{"name": "add"}]},
    "tools[0].type": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tool_choice": {"tools": [ADD], "tool_choice": {"type": "some"}},
    "tool_choice.disable_parallel_tool_use": {
        "tools": [ADD],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1},
    },
    "thinking.type": {"thinking": {"type": ["enabled"]}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "output_config.effort": {"output_config": {"effort": {}}},
    "output_config.format": {"output_config": {"format": {"type": "json"}}},
    "mcp_servers": {"mcp_servers": [{"url": "x"}]},
    "temperature": {"temperature": -1},
    "is too long": {"messages": [user("x" * 3000)]},
}


@pytest.mark.parametrize("named", BAD)
def test_bad_bodies_are_refused_by_the_name_of_the_field(scripted, stream, named):
    body = {"max_tokens": 9, "messages": [user("x")], "stream": stream, **BAD[named]}
    reply = scripted.post("/v1/messages", body)
    assert reply.status == 400
    told = reply.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    field = named if named != "is too long" else "2048"
    assert field.split("[")[0] in told["error"]["message"]
    assert (named == "is too long") == told["error"]["message"].startswith("prompt is too long")


def test_max_tokens_is_required(scripted):
    reply = scripted.post("/v1/messages", {"messages": [user("x")]})
    assert reply.status == 400
    assert "max_tokens is missing" in reply.json()["error"]["message"]


def test_errors_are_those_of_the_client(claude, serve_echo):
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        ask(claude, "x", model="other")
    with pytest.raises(anthropic.BadRequestError, match="images are not supported"):
        ask(claude, [IMAGE], stream=True)
    guarded = serve_echo(server={"keys": ("right",)})
    with client_of(guarded) as client, pytest.raises(anthropic.AuthenticationError):
        ask(client, "x")
    with client_of(guarded, api_key="right") as client:
        assert ask(client, "x", max_tokens=1).content
    with client_of(guarded, api_key=None, auth_token="right") as client:
        assert ask(client, "x", max_tokens=1).content


def test_a_fault_in_a_stream_is_an_error_event(serve_echo, script_bundle):
    server = serve_echo(bundle=script_bundle, fail_decode_runs=[2])
    with client_of(server) as client, pytest.raises(anthropic.APIStatusError) as raised:
        ask(client, "abcdef", stream=True)
    assert raised.value.body["error"]["type"] == "api_error"
