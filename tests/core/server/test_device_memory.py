"""A device that has less memory than the plan was told: refused in time, told as it is."""

from __future__ import annotations

import pytest

TOKEN_BYTES = 32  # of the echo model's cache
LEAST_BYTES = 256 * TOKEN_BYTES


@pytest.fixture
def tight(serve_echo):
    """Room for one row of 256 tokens, and for some of what a larger one would take."""
    return serve_echo(lazy=False, memory_bytes=LEAST_BYTES * 3 // 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_room_is_refused_before_its_stream_and_others_go_on(tight, stream):
    small = {"prompt": "abc", "max_tokens": 20, "stream": stream}
    large = {"prompt": "abc", "max_tokens": 400, "stream": stream}
    assert tight.post("/generate", small).status == 200
    reply = tight.post("/generate", large)
    assert reply.status == 503
    assert reply.headers["Retry-After"]
    assert "no memory left for this request" in reply.json()["error"]["message"]
    assert tight.post("/generate", small).status == 200


def test_health_tells_what_the_cache_takes(serve_echo):
    live = serve_echo(lazy=False)
    before = live.get("/health").json()["models"][0]
    assert before["memory"]["kv_now_bytes"] == LEAST_BYTES
    assert live.post("/generate", {"prompt": "a" * 300, "max_tokens": 20}).status == 200
    after = live.get("/health").json()["models"][0]
    assert after["load"]["kv_tokens_touched"] == 512
    assert after["memory"]["kv_now_bytes"] == 2 * LEAST_BYTES
    grown = after["memory"]["planned_now_bytes"] - before["memory"]["planned_now_bytes"]
    assert grown == LEAST_BYTES
