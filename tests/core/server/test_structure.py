"""Constrained answers on every surface, whole and streamed."""

import json

import openai
import pytest

from twostroke.errors import RequestError
from twostroke.server.surfaces.openai.structure import asked_constraint
from twostroke.types import Constraint, ConstraintKind

EMOJI = "😀👍🏽🇫🇷"
SCHEMA = {"const": EMOJI}
HI = [{"role": "user", "content": "hi"}]
BODIES = {
    "/generate": {"prompt": "hi", "json_schema": SCHEMA},
    "/v1/completions": {
        "prompt": "hi",
        "response_format": {"type": "json_schema", "json_schema": {"name": "e", "schema": SCHEMA}},
    },
    "/v1/chat/completions": {"messages": HI, "structured_outputs": {"json": SCHEMA}},
}


def text_of(path, reply):
    if path == "/generate":
        return reply.json()["text"]
    (choice,) = reply.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"] if "chat" in path else choice["text"]


@pytest.mark.parametrize("path", BODIES)
def test_an_emoji_constant_arrives_whole(live, path):
    reply = live.post(path, {**BODIES[path], "stream": False}, Accept="application/json")
    assert reply.status == 200, reply.body
    assert json.loads(text_of(path, reply)) == EMOJI


@pytest.mark.parametrize("path", BODIES)
def test_an_emoji_constant_streams_in_whole_characters(live, path):
    with live.connect(path, {**BODIES[path], "stream": True}) as connection:
        assert b" 200 " in connection.head().splitlines()[0]
        chunks, is_clean = connection.chunks()
    assert is_clean
    text = ""
    for chunk in chunks:
        decoded = chunk.decode("utf-8")  # each chunk is valid on its own
        if path == "/generate":
            text += decoded
            continue
        for line in decoded.split("\n\n"):
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert "\ufffd" not in text
    assert text == json.dumps(EMOJI, ensure_ascii=False)


def test_the_official_client_parses_an_answer(live):
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}},
        "required": ["sure", "n"],
        "additionalProperties": False,
    }
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="echo",
            messages=HI,
            temperature=1.5,
            seed=3,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema, "strict": True},
            },
        )
    said = json.loads(answer.choices[0].message.content)
    assert list(said) == ["sure", "n"]
    assert isinstance(said["sure"], bool)


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"choice": ["yes", "no"]}, ["yes", "no"]),
        ({"regex": "a{3}"}, ["aaa"]),
        ({"grammar": 'start: "x" "y"'}, ["xy"]),
        ({"json_schema": '{"const": 5}'}, ["5"]),
    ],
)
def test_generate_takes_every_kind(live, fields, answers):
    reply = live.post("/generate", {"prompt": "hi", **fields})
    assert reply.body.decode() in answers


def test_json_object_is_an_object(live):
    body = {"prompt": "hi", "json_object": True, "temperature": 1.5, "seed": 1, "max_tokens": 300}
    reply = live.post("/generate", body, Accept="application/json")
    assert reply.json()["text"].startswith("{")


BOMBS = {
    "nested": '{"type":"array","items":' * 60_000 + "{}" + "}" * 60_000,
    "cyclic": '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
    "unclosed": '{"type":"string","pattern":"(((("}',
    "exponential": '{"type":"string","pattern":"(a+)+$"}',
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", BODIES)
def test_a_grammar_bomb_is_a_400_and_the_server_lives(live, path, bomb):
    wrapped = {
        "/generate": '{"prompt":"hi","json_schema":%s}',
        "/v1/completions": '{"prompt":"hi","guided_json":%s}',
        "/v1/chat/completions": '{"messages":[{"role":"user","content":"hi"}],"response_format":'
        '{"type":"json_schema","json_schema":{"name":"a","schema":%s}}}',
    }[path]
    reply = live.post(path, wrapped % BOMBS[bomb])  # whose patience ends after a minute
    assert reply.status == 400, reply.body[:300]
    assert reply.error()["type"] == "invalid_request_error"
    assert live.post("/generate", {"prompt": "a"}).body == "→a".encode()


@pytest.mark.parametrize("pattern", ["((((", "(a+)+$"])
def test_pattern_bombs_are_400s_too(live, pattern):
    assert live.post("/generate", {"prompt": "hi", "regex": pattern}).status == 400
    assert live.post("/v1/completions", {"prompt": "hi", "guided_regex": pattern}).status == 400


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}, "json_schema": {}}, None),
        ({"response_format": None, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint(ConstraintKind.JSON_OBJECT)),
        ({"structured_outputs": {"json_object": True}}, Constraint(ConstraintKind.JSON_OBJECT)),
        ({"structured_outputs": {"regex": "a"}}, Constraint(ConstraintKind.REGEX, "a")),
        ({"structured_outputs": {"choice": ["a"]}}, Constraint(ConstraintKind.CHOICE, '["a"]')),
        ({"guided_grammar": "start: /a/"}, Constraint(ConstraintKind.GRAMMAR, "start: /a/")),
        ({"guided_choice": ["a"]}, Constraint(ConstraintKind.CHOICE, '["a"]')),
        ({"json_schema": {"const": 1}}, Constraint(ConstraintKind.JSON_SCHEMA, '{"const": 1}')),
    ],
)
def test_what_clients_ask_for_is_understood(body, expected):
    assert asked_constraint(body) == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
        ({"json_schema": 0}, "json_schema"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(body, param):
    with pytest.raises(RequestError) as caught:
        asked_constraint(body)
    assert caught.value.param == param
