"""Anthropic's surface, by the official client: answers, whole and streamed."""

from __future__ import annotations

import json

import anthropic

from .asking import ONE_A, TEMPLATE, THOUGHT, ask, user

ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def test_a_text(claude, stream):
    message = ask(claude, "hi", stream=stream)
    assert message.id.startswith("msg_")
    assert stream or message.id == f"msg_{message._request_id}"
    assert (message.type, message.role, message.model) == ("message", "assistant", "echo")
    assert [(block.type, block.text) for block in message.content] == [("text", "→hi")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 4)


def test_why_an_answer_ends(claude, stream):
    cut = ask(claude, "abcdef", stream=stream, max_tokens=3)
    assert (cut.content[0].text, cut.stop_reason) == ("→ab", "max_tokens")
    stopped = ask(claude, "abcdef", stream=stream, stop_sequences=["x", "cd"])
    assert stopped.content[0].text == "→ab"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "cd")


def test_the_end_of_the_context_is_told_apart(serve_template, stream):
    server = serve_template(TEMPLATE, context_tokens=16)
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        message = ask(client, "abcdefghij", stream=stream)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens == 6


def test_calls(claude, stream):
    message = ask(claude, TWO_CALLS, stream=stream, tools=[ADD, NOW])
    text, first, second = message.content
    assert text.text == "→"
    assert (first.type, first.name, first.input) == ("tool_use", "add", {"a": 1})
    assert (second.name, second.input) == ("now", {})
    assert first.id != second.id
    assert message.stop_reason == "tool_use"


def test_arguments_that_are_no_json_are_not_lost(claude):
    bad = '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>'
    message = ask(claude, bad, tools=[ADD])
    assert message.content[-1].input == {"unparsed": '{"a": }'}


def test_thinking(claude, stream):
    def thought(**more):
        """The block of thinking, and all text. A stream has each where the model wrote it."""
        content = ask(claude, THOUGHT, stream=stream, **more).content
        (thinking,) = [block for block in content if block.type == "thinking"]
        return thinking, "".join(block.text for block in content if block.type == "text")

    thinking, text = thought()
    assert (thinking.thinking, text) == ("a < b", "→It is b.")
    assert thinking.signature
    thinking, text = thought(thinking={"type": "adaptive", "display": "omitted"})
    assert (thinking.thinking, text) == ("", "→It is b.")


def events_of(server, **body):
    """Each event's name and data."""
    body = {"model": "echo", "max_tokens": 400, "stream": True, **body}
    reply = server.post("/v1/messages", body)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for event in reply.body.decode().strip().split("\n\n"):
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(data["type"] == name for name, data in found)
    return found


def test_the_order_of_events(scripted):
    events = events_of(scripted, messages=[user(f"{THOUGHT}{TWO_CALLS}")], tools=[ADD, NOW])
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    told = []
    for name, data in events[2:-2]:
        if name == "content_block_start":
            told.append((data["index"], data["content_block"]["type"], set()))
        elif name == "content_block_delta":
            assert data["index"] == told[-1][0]
            told[-1][2].add(data["delta"]["type"])
        else:
            assert data == {"type": "content_block_stop", "index": told[-1][0]}
    assert told == [
        (0, "text", {"text_delta"}),
        (1, "thinking", {"thinking_delta", "signature_delta"}),
        (2, "text", {"text_delta"}),
        (3, "tool_use", {"input_json_delta"}),
        (4, "tool_use", {"input_json_delta"}),
    ]
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["output_tokens"] == 0


def test_what_was_in_the_cache_is_told(claude, stream):
    text = "a prompt that is long enough to be worth keeping " * 4
    first, second = (ask(claude, text, stream=stream) for _ in range(2))
    assert first.usage.cache_read_input_tokens == 0
    cached = second.usage.cache_read_input_tokens
    assert cached > 100
    assert cached + second.usage.input_tokens == first.usage.input_tokens


def test_a_tool_may_be_required(serve_template, stream):
    silent = TEMPLATE.replace("<think> ", "")  # no thinking before calls
    with anthropic.Anthropic(base_url=serve_template(silent).url, api_key="none") as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            choice["disable_parallel_tool_use"] = True
            message = ask(client, "x", stream=stream, tools=[ADD], tool_choice=choice)
            (call,) = message.content
            assert call.name == "add"
            assert call.input["a"] in (1, 2)
            assert message.stop_reason == "tool_use"


def test_a_schema_is_followed(claude, stream):
    config = {"format": {"type": "json_schema", "schema": ONE_A}}
    message = ask(claude, "x", stream=stream, output_config=config)
    assert json.loads(message.content[0].text) == {"a": 1}


def test_tokens_are_counted_as_they_are_read(claude):
    asked = {"model": "echo", "messages": [user("hello")]}
    assert claude.messages.count_tokens(**asked).input_tokens == 5
    assert ask(claude, "hello").usage.input_tokens == 5


def test_the_route_without_v1(scripted):
    body = {"max_tokens": 9, "messages": [user("hi")]}
    for path in ("/messages", "/v1/messages"):
        assert scripted.post(path, body).json()["content"] == [{"type": "text", "text": "→hi"}]
    del body["max_tokens"]
    assert scripted.post("/messages/count_tokens", body).json() == {"input_tokens": 2}


def test_models_are_listed_for_its_clients(claude):
    (model,) = claude.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("echo", "model", 2048)
    assert claude.models.retrieve("echo").display_name == "echo"
