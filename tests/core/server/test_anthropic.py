"""Anthropic's surface, by the official client.

The template of these bundles hands the last message to the echo model, so a test writes the answer.
"""

from __future__ import annotations

import json

import anthropic
import pytest

from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
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
THOUGHT = "<think>\na < b\n</think>\n\nIt is b."


@pytest.fixture(scope="module")
def script_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def scripted(serve_echo, script_bundle):
    return serve_echo(bundle=script_bundle)


def client_of(server, **more):
    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **more})


@pytest.fixture
def client(scripted):
    with client_of(scripted) as client:
        yield client


def user(content):
    return {"role": "user", "content": content}


def ask(client, text, *, stream=False, **more):
    """The message, as the client puts it together."""
    given = {"model": "echo", "max_tokens": 400, "messages": [user(text)], **more}
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request):
    return request.param


def test_a_text(client, stream):
    message = ask(client, "hi", stream=stream)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "echo")
    assert [(block.type, block.text) for block in message.content] == [("text", "→hi")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 4)


def test_why_an_answer_ends(client, stream):
    cut = ask(client, "abcdef", stream=stream, max_tokens=3)
    assert (cut.content[0].text, cut.stop_reason) == ("→ab", "max_tokens")
    stopped = ask(client, "abcdef", stream=stream, stop_sequences=["x", "cd"])
    assert stopped.content[0].text == "→ab"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "cd")


def test_the_end_of_the_context_is_told_apart(serve_echo, tmp_path, stream):
    bundle = make_echo_bundle(tmp_path / "b", chat_template=TEMPLATE, context_tokens=16)
    with client_of(serve_echo(bundle=bundle)) as client:
        message = ask(client, "abcdefghij", stream=stream)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens == 6


def test_calls(client, stream):
    message = ask(client, TWO_CALLS, stream=stream, tools=[ADD, NOW])
    text, first, second = message.content
    assert text.text == "→"
    assert (first.type, first.name, first.input) == ("tool_use", "add", {"a": 1})
    assert (second.name, second.input) == ("now", {})
    assert first.id != second.id
    assert message.stop_reason == "tool_use"


def test_arguments_that_are_no_json_are_not_lost(client):
    bad = '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>'
    message = ask(client, bad, tools=[ADD])
    assert message.content[-1].input == {"unparsed": '{"a": }'}


def test_thinking(client, stream):
    def thought(**more):
        """The block of thinking, and all text. A stream has each where the model wrote it."""
        content = ask(client, THOUGHT, stream=stream, **more).content
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


def test_what_was_in_the_cache_is_told(client, stream):
    text = "a prompt that is long enough to be worth keeping " * 4
    first, second = (ask(client, text, stream=stream) for _ in range(2))
    assert first.usage.cache_read_input_tokens == 0
    cached = second.usage.cache_read_input_tokens
    assert cached > 100
    assert cached + second.usage.input_tokens == first.usage.input_tokens


@pytest.fixture
def telling(serve_echo, tmp_path):
    """A server whose model answers with what its template was given."""
    template = (
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
        "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
        "{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }}"
        "{{ c.function.arguments | tojson }}>{% endfor %}"
        "{% if m.name %}={{ m.name }}{% endif %}]{% endfor %}"
        "{% if enable_thinking is defined %}think={{ enable_thinking }}{% endif %}"
        "{% if thinking_budget is defined %} of {{ thinking_budget }}{% endif %}"
        "{% if reasoning_effort is defined %} {{ reasoning_effort }}{% endif %}"
        "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
    )
    bundle = make_echo_bundle(tmp_path / "telling", chat_template=template, context_tokens=2048)
    with client_of(serve_echo(bundle=bundle)) as client:
        yield (
            lambda *messages, **more: (
                client.messages.create(
                    **{"model": "echo", "max_tokens": 1024, "messages": messages, **more}
                )
                .content[0]
                .text.removeprefix("→")
            )
        )


def test_a_conversation_reaches_the_template(telling):
    said = telling(
        user([{"type": "text", "text": "What is"}, {"type": "text", "text": " 1+1?"}]),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "easy", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        },
        user(
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": "boom", "is_error": True},
                {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
            ]
        ),
        user("Hurry."),
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    )
    assert said == (
        "[system:Be brief.][user:What is 1+1?][assistant:Let me see.(easy)"
        '<t1 add{"a": 1}>][tool:Error: boom=add][user:Well?\n\nHurry.]'
    )


def test_results_hold_text_or_blocks_or_nothing(telling):
    call = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    for content, shown in (
        ({"content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}, "42"),
        ({"content": "42"}, "42"),
        ({}, ""),
    ):
        said = telling(
            user("?"),
            {"role": "assistant", "content": [call]},
            user([{"type": "tool_result", "tool_use_id": "t1", **content}]),
        )
        assert said == f"[user:?][assistant:<t1 now{{}}>][tool:{shown}=now]"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, ""),
        ({"thinking": {"type": "disabled"}}, "think=False"),
        ({"thinking": {"type": "adaptive"}}, "think=True"),
        (
            {"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            "think=True of 1024",
        ),
        ({"output_config": {"effort": "xhigh"}}, " high"),
        ({"tools": [ADD, NOW]}, "add,now,"),
        ({"tools": [ADD], "tool_choice": {"type": "none"}}, ""),
    ],
)
def test_what_the_template_is_told_of_thinking_and_tools(telling, asked, told):
    assert telling(user("x"), **asked) == f"[user:x]{told}"


def test_a_tool_may_be_required(serve_echo, tmp_path, stream):
    silent = TEMPLATE.replace("<think> ", "")  # no thinking before calls
    client = client_of(serve_echo(bundle=make_echo_bundle(tmp_path / "b", chat_template=silent)))
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
        choice["disable_parallel_tool_use"] = True
        message = ask(client, "x", stream=stream, tools=[ADD], tool_choice=choice)
        (call,) = message.content
        assert call.name == "add"
        assert call.input["a"] in (1, 2)
        assert message.stop_reason == "tool_use"
    client.close()


def test_a_schema_is_followed(client, stream):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(client, "x", stream=stream, output_config=config)
    assert json.loads(message.content[0].text) == {"a": 1}


def test_tokens_are_counted_as_they_are_read(client):
    asked = {"model": "echo", "messages": [user("hello")]}
    assert client.messages.count_tokens(**asked).input_tokens == 5
    assert ask(client, "hello").usage.input_tokens == 5


def test_the_route_without_v1(scripted):
    body = {"max_tokens": 9, "messages": [user("hi")]}
    for path in ("/messages", "/v1/messages"):
        assert scripted.post(path, body).json()["content"] == [{"type": "text", "text": "→hi"}]
    del body["max_tokens"]
    assert scripted.post("/messages/count_tokens", body).json() == {"input_tokens": 2}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
BAD = {
    "messages[0].content[1]": {"messages": [user([{"type": "text", "text": "a"}, IMAGE])]},
    "messages[0].content[0].text": {"messages": [user([{"type": "text", "text": 5}])]},
    "messages[0].content": {"messages": [user([])]},
    "messages[0].role": {"messages": [{"role": "robot", "content": "x"}]},
    "messages[1].role": {"messages": [user("x"), {"role": "assistant", "content": "It"}]},
    "messages": {"messages": []},
    "max_tokens": {"max_tokens": "many"},
    "system[0]": {"system": [IMAGE]},
    "tools[0].name": {"tools": [{**ADD, "name": "a b"}]},
    "tools[0].input_schema": {"tools": [{"name": "add"}]},
    "tools[0].type": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tool_choice": {"tools": [ADD], "tool_choice": {"type": "some"}},
    "thinking.type": {"thinking": {"type": ["enabled"]}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "output_config.effort": {"output_config": {"effort": {}}},
    "output_config.format": {"output_config": {"format": {"type": "json"}}},
    "mcp_servers": {"mcp_servers": [{"url": "x"}]},
    "temperature": {"temperature": -1},
    "is too long": {"messages": [user("x" * 3000)]},
}


@pytest.mark.parametrize("named", BAD)
def test_bad_bodies_are_refused_by_the_name_of_the_field(scripted, stream, named):
    body = {"max_tokens": 9, "messages": [user("x")], "stream": stream, **BAD[named]}
    reply = scripted.post("/v1/messages", body)
    assert reply.status == 400
    told = reply.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    field = named if named != "is too long" else "2048"
    assert field.split("[")[0] in told["error"]["message"]


def test_max_tokens_is_required(scripted):
    reply = scripted.post("/v1/messages", {"messages": [user("x")]})
    assert reply.status == 400
    assert "max_tokens is missing" in reply.json()["error"]["message"]


def test_errors_are_those_of_the_client(scripted, serve_echo):
    with client_of(scripted) as client:
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            ask(client, "x", model="other")
        with pytest.raises(anthropic.BadRequestError, match="images are not supported"):
            ask(client, [IMAGE], stream=True)
    guarded = serve_echo(server={"keys": ("right",)})
    with client_of(guarded) as client, pytest.raises(anthropic.AuthenticationError):
        ask(client, "x")
    with client_of(guarded, api_key="right") as client:
        assert ask(client, "x", max_tokens=1).content
    with client_of(guarded, api_key=None, auth_token="right") as client:
        assert ask(client, "x", max_tokens=1).content


def test_a_fault_in_a_stream_is_an_error_event(serve_echo, script_bundle):
    server = serve_echo(bundle=script_bundle, fail_decode_runs=[2])
    with client_of(server) as client, pytest.raises(anthropic.APIStatusError) as raised:
        ask(client, "abcdef", stream=True)
    assert raised.value.body["error"]["type"] == "api_error"


def test_models_are_listed_for_its_clients(client):
    (model,) = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("echo", "model", 2048)
    assert client.models.retrieve("echo").display_name == "echo"
