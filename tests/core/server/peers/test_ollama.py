"""Ollama's surface, by the official client: answers, whole and streamed."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from .asking import ONE_A, THOUGHT, chat, generate, user

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>'
)


def test_a_chat(llama, stream):
    text, thinking, calls, end = chat(llama, "hi", stream=stream)
    assert (text, thinking, calls) == ("→hi", "", [])
    assert (end.model, end.done_reason) == ("echo", "stop")
    assert (end.prompt_eval_count, end.eval_count) == (2, 4)
    assert end.prompt_eval_duration > 0
    assert end.total_duration >= end.prompt_eval_duration + end.eval_duration
    assert datetime.fromisoformat(end.created_at).tzinfo is not None


def test_streams_unless_told_otherwise(scripted):
    for path, body in (
        ("/api/chat", {"messages": [user("hi")]}),
        ("/api/generate", {"prompt": "hi"}),
    ):
        reply = scripted.post(path, body)
        assert reply.headers["Content-Type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in reply.body.splitlines()]
        assert [line["done"] for line in lines] == [False, False, False, True]
        assert {line["model"] for line in lines} == {"echo:latest"}


def test_calls_are_whole(llama, stream):
    text, _, calls, end = chat(llama, TWO_CALLS, stream=stream, tools=[ADD])
    assert (text, end.done_reason) == ("→", "stop")
    assert [call.name for call in calls] == ["add", "add"]
    assert calls[0].arguments == {"a": 1}
    assert calls[1].arguments == {"unparsed": '{"a": }'}  # what the model wrote is no JSON


def test_a_line_holds_one_call(scripted):
    body = {"messages": [user(TWO_CALLS)], "tools": [ADD]}
    lines = [json.loads(line) for line in scripted.post("/api/chat", body).body.splitlines()]
    calls = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
    assert [[call["function"]["index"] for call in line] for line in calls] == [[0], [1]]
    assert len({line[0]["id"] for line in calls}) == 2


def test_thinking(llama, stream):
    for think in (None, True, "low"):
        text, thinking, _, _ = chat(llama, THOUGHT, stream=stream, think=think)
        assert (text, thinking) == ("→It is b.", "a < b")
    assert generate(llama, THOUGHT, stream=stream)[:2] == ("→It is b.", "a < b")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"num_predict": 3}, "→ab", "length"),
        ({"num_predict": -1, "num_ctx": 9, "num_gpu": 4, "seed": -1}, "→abcdef", "stop"),
        ({"stop": ["cd"], "top_k": 4, "min_p": 0.1, "typical_p": 1.0}, "→ab", "stop"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, "→abcdef", "stop"),
    ],
)
def test_options(llama, stream, options, text, reason):
    said, _, _, end = chat(llama, "abcdef", stream=stream, options=options)
    assert (said, end.done_reason) == (text, reason)


def test_a_format_is_followed(llama, stream):
    assert json.loads(chat(llama, "x", stream=stream, format=ONE_A)[0]) == {"a": 1}
    assert json.loads(generate(llama, "x", stream=stream, format=ONE_A)[0]) == {"a": 1}


def test_any_json(scripted):
    body = {"prompt": "x", "format": "json", "stream": False, "options": {"num_predict": 1}}
    assert scripted.post("/api/generate", body).json()["response"].strip() in ("{", "")
    assert scripted.post("/api/generate", {**body, "format": "xml"}).status == 400


def test_logprobs(llama, stream):
    given = {"model": "echo", "messages": [user("ab")], "logprobs": True, "top_logprobs": 2}
    answer = llama.chat(stream=stream, **given)
    lines = list(answer) if stream else [answer]
    found = [each for line in lines for each in line.logprobs or ()]
    assert [each.token for each in found] == ["→", "a", "b"]
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in found)


@pytest.mark.parametrize("keep_alive", [None, "5m", "1h30m", -1, 60.5])
def test_nothing_to_answer_only_loads(llama, keep_alive):
    for answer in (
        llama.generate(model="echo", prompt="", keep_alive=keep_alive),
        llama.chat(model="echo", messages=[], keep_alive=keep_alive),
        next(llama.generate(model="echo", stream=True, keep_alive=keep_alive)),
    ):
        assert (answer.done, answer.done_reason) == (True, "load")


def test_a_server_that_loads_no_models_unloads_none(scripted):
    for path in ("/api/chat", "/api/generate"):
        reply = scripted.post(path, {"keep_alive": 0})
        assert (reply.status, set(reply.json())) == (403, {"error"})


def test_a_model_stays_behind_an_answer(llama):
    for keep_alive in (0, "0s"):
        assert chat(llama, "x", keep_alive=keep_alive)[0] == "→x"
