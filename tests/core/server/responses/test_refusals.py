"""What is wrong with a request is named before the answer; a fault in it ends it."""

import json

import pytest

from .conftest import ADD, PATH


def test_a_fault_in_mid_stream_is_a_response_that_failed(serve_echo, bundle):
    live = serve_echo(bundle=bundle, fail_decode_runs=[3])
    with live.connect(PATH, {"input": "abcdef", "stream": True}) as stream:
        assert b" 200 " in stream.head()
        chunks, ended_cleanly = stream.chunks()
    assert ended_cleanly, "a client that reads to the end gets no error of its connection"
    last = json.loads(chunks[-1].split(b"data: ")[1])
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert b"".join(chunks).count(b"event: response.completed") == 0
    whole = serve_echo(bundle=bundle, fail_decode_runs=[3]).post(PATH, {"input": "abcdef"})
    assert (whole.status, whole.error()["code"]) == (500, "engine_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "king", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "1"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
            "input[0].call_id",
        ),
        ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "input[0].id"),
        ({"input": "x" * 9000}, "input"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "max_output_tokens": 5, "max_tokens": 6}, "max_output_tokens"),
        ({"input": "a", "include": ["everything"]}, "include[0]"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "truncation": "some"}, "truncation"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "n": 2}, "n"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "response_format": {"type": "text"}}, "response_format"),
        ({"input": "a", "metadata": {"a": 1}}, "metadata.a"),
        ({"input": "a", "metadata": {"a": "b" * 513}}, "metadata"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "a", "tools": [ADD], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"input": "a", "tools": "add"}, "tools"),
        ({"input": "a", "previous_response_id": "resp_0"}, "previous_response_id"),
    ],
)
def test_what_is_wrong_is_named(live, more, param, stream):
    reply = live.post(PATH, {**more, "stream": stream})
    assert reply.status == 400, reply.body[:300]
    assert reply.error()["param"] == param
    assert ".function" not in reply.error()["message"]
