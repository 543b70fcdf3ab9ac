"""What clients see of deadlines and priorities."""

from __future__ import annotations

import pytest

ROUTES = ["/generate", "/v1/completions", "/v1/chat/completions"]


def body_for(path: str, **fields: object) -> dict[str, object]:
    prompt = {"prompt": "hello"}
    if path.endswith("chat/completions"):
        prompt = {"messages": [{"role": "user", "content": "hello"}]}
    return {**prompt, "max_tokens": 100, "ignore_eos": True, "stream": False, **fields}


@pytest.mark.parametrize("path", ROUTES)
def test_a_request_without_time_is_answered_504(serve_echo, path):
    live = serve_echo(step_delay_s=0.01)
    reply = live.post(path, body_for(path, timeout_s=1e-9))
    assert reply.status == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"


def test_the_server_sets_a_limit_that_a_request_cannot_raise(serve_echo):
    live = serve_echo(step_delay_s=0.01, scheduler={"request_timeout_s": 1e-9})
    assert live.post("/generate", body_for("/generate", timeout_s=1000.0)).status == 504


@pytest.mark.parametrize("path", ROUTES)
def test_a_priority_and_enough_time_change_no_answer(serve_echo, path):
    live = serve_echo()
    plain, urgent = (
        live.post(path, body_for(path, **fields))
        for fields in ({}, {"priority": -5, "timeout_s": 600})
    )
    assert plain.status == urgent.status == 200


@pytest.mark.parametrize(
    ("field", "value"), [("timeout_s", 0), ("timeout_s", "1"), ("priority", 1.5)]
)
def test_wrong_values_are_refused_by_name(serve_echo, field, value):
    reply = serve_echo().post("/generate", body_for("/generate", **{field: value}))
    assert reply.status == 400
    assert reply.json()["error"]["param"] == field
