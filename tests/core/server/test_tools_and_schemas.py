"""Tools beside a schema: an answer is calls, or JSON that follows the schema."""

import json

import pytest

from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> #}{% if tools %}{% endif %}{{ messages[-1]['content'] }}"
NOW = {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}
SEVEN = {
    "type": "object",
    "properties": {"seven": {"const": 7}},
    "required": ["seven"],
    "additionalProperties": False,
}
BODY = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": NOW}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "seven", "schema": SEVEN}},
    "temperature": 2,
    "max_tokens": 300,
}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def live(serve_echo, bundle):
    return serve_echo(bundle=bundle)


def test_an_answer_is_calls_or_follows_the_schema(live):
    seen = set()
    # The echo model knows neither: the grammar lets it choose.
    for choice in live.post(CHAT, {**BODY, "seed": 1, "n": 16}).json()["choices"]:
        message, reason = choice["message"], choice["finish_reason"]
        calls = message.get("tool_calls", [])
        if reason != "length":
            assert bool(message["content"]) is not bool(calls)
            assert reason == ("tool_calls" if calls else "stop")
            assert calls or json.loads(message["content"]) == {"seven": 7}
            assert all(call["function"]["name"] == "now" for call in calls)
            seen.add(bool(calls))
    assert seen == {True, False}


def test_one_must_be_called_all_the_same(live):
    choice = live.post(CHAT, {**BODY, "tool_choice": "required", "n": 1}).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "now"


def test_responses_have_both_too(live):
    asked = {"input": "x", "tools": [{"type": "function", **NOW}], "max_output_tokens": 300}
    asked["text"] = {"format": {"type": "json_schema", "name": "seven", "schema": SEVEN}}
    for item in live.post("/v1/responses", {**asked, "seed": 1}).json()["output"]:
        assert item["type"] in ("message", "function_call")
        if item["type"] == "message" and item["status"] == "completed":
            assert json.loads(item["content"][0]["text"]) == {"seven": 7}


def test_a_bad_schema_beside_tools_is_named_itself(live):
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}
    reply = live.post(CHAT, {**BODY, "response_format": form})
    assert reply.status == 400
    assert "tools" not in reply.error()["message"]
