"""What clients see of reused prefixes, and that keys never share any."""

from __future__ import annotations

import json

import pytest

PROMPT = "a system prompt that many requests begin with. "


def cached_tokens(live, path, prompt, **facts) -> int:
    body = {"prompt": prompt, "max_tokens": 4}
    if path.endswith("chat/completions"):
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    reply = live.post(path, body, **facts)
    assert reply.status == 200
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_tells_how_much_of_a_prompt_was_cached(serve_echo, path):
    live = serve_echo()
    assert cached_tokens(live, path, PROMPT + "one") == 0
    assert cached_tokens(live, path, PROMPT + "two") >= len(PROMPT)


def test_a_stream_tells_it_too(serve_echo):
    live = serve_echo()
    body = {"prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True}}
    for expected in (0, len(PROMPT) - 1):
        lines = live.post("/v1/completions", body).body.decode().split("\n\n")
        (usage,) = [json.loads(line[6:])["usage"] for line in lines if '"usage":{' in line]
        assert usage["prompt_tokens_details"] == {"cached_tokens": expected}


def test_keys_share_nothing(serve_echo):
    live = serve_echo(server={"keys": ["first", "second"]})
    asked = []
    for key in ("first", "second", "second", "first"):
        authorization = f"Bearer {key}"
        asked.append(cached_tokens(live, "/v1/completions", PROMPT, Authorization=authorization))
    assert asked == [0, 0, len(PROMPT) - 1, len(PROMPT) - 1]
