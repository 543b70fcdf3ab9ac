"""Grammars that would hang or end a server are refused, and it goes on."""

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
SOON_S = 20  # under a second on a quiet machine; a hang is what this shows


@pytest.mark.cases(25)
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", BODIES)
def test_a_hostile_schema_is_refused(live, path, bomb):
    reply = live.ask("POST", path, BODIES[path] % BOMBS[bomb], timeout_s=SOON_S)
    assert reply.error()["type"] == "invalid_request_error"
    assert live.say(path, "hi", max_tokens=2).num_tokens == 2


@pytest.mark.cases(25)
@pytest.mark.parametrize("pattern", ["((((", "(a+)+$"])
def test_a_hostile_pattern_is_refused(live, pattern):
    for path, field in (("/generate", "regex"), ("/v1/completions", "guided_regex")):
        live.ask("POST", path, {"prompt": "hi", field: pattern}, timeout_s=SOON_S).error()
    assert live.say("/generate", "hi", max_tokens=2).num_tokens == 2
