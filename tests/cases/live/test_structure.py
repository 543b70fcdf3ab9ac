"""Grammars that would hang or end a server are refused, and it goes on."""

import json

import pytest

CHAT = "/v1/chat/completions"
BODIES = {
    "/generate": '{"prompt":"hi","json_schema":%s}',
    "/v1/completions": '{"prompt":"hi","guided_json":%s}',
    CHAT: '{"messages":[{"role":"user","content":"hi"}],"response_format":'
    '{"type":"json_schema","json_schema":{"name":"a","schema":%s}}}',
}
BOMBS = {
    "nested": '{"type":"array","items":' * 60_000 + "{}" + "}" * 60_000,
    "cyclic": '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
    "unclosed": '{"type":"string","pattern":"(((("}',
    "exponential": '{"type":"string","pattern":"(a+)+$"}',
}
HANG_S = 60  # of waiting, on a machine that may be busy
MOST_CPU_S = 1.0  # of processor time, which tells the server's own work from the machine's load


@pytest.fixture
def refuses_soon(live):
    """Sees to it that the refusals of a test take the server less than a second's work each."""
    asked = {"prompt": "hi", "json_schema": {"const": 1}, "max_tokens": 8}
    assert live.post("/generate", asked).status == 200  # the first one reads the vocabulary

    def refuse(path, body):
        before = live.cpu_s()
        error = live.ask("POST", path, body, timeout_s=HANG_S).error()
        assert live.cpu_s() - before < MOST_CPU_S
        return error

    return refuse


@pytest.mark.cases(25)
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", BODIES)
def test_a_hostile_schema_is_refused(live, refuses_soon, path, bomb):
    error = refuses_soon(path, BODIES[path] % BOMBS[bomb])
    assert error["type"] == "invalid_request_error"
    assert live.say(path, "hi", max_tokens=2).num_tokens == 2


@pytest.mark.cases(25)
@pytest.mark.parametrize("pattern", ["((((", "(a+)+$"])
def test_a_hostile_pattern_is_refused(live, refuses_soon, pattern):
    for path, field in (("/generate", "regex"), ("/v1/completions", "guided_regex")):
        refuses_soon(path, json.dumps({"prompt": "hi", field: pattern}))
    assert live.say("/generate", "hi", max_tokens=2).num_tokens == 2
