"""Calls and reasoning on OpenAI's chat surface, by the official client.

The template of these bundles hands the last message to the echo model, so a test writes the answer.
"""

import json

import openai
import pytest

from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NOW = {
    "type": "function",
    "function": {"name": "now", "parameters": {"additionalProperties": False}},
}
TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def script_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def scripted(serve_echo, script_bundle):
    return serve_echo(bundle=script_bundle)


@pytest.fixture
def client(scripted):
    url = f"{scripted.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def say(text):
    return [{"role": "user", "content": text}]


def ask(client, text, **more):
    return client.chat.completions.create(model="echo", messages=say(text), **more).choices[0]


def streamed(client, text, **more):
    """What a client puts together out of a stream: content, reasoning, calls, finish reason."""
    content, reasoning, calls, reasons = "", "", {}, []
    for chunk in client.chat.completions.create(
        model="echo", messages=say(text), stream=True, **more
    ):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.index == len(calls)
                calls[call.index] = [call.function.name, "", call.id]
            calls[call.index][1] += call.function.arguments or ""
        reasons.append(choice.finish_reason)
    assert all(reason is None for reason in reasons[:-1])
    return content, reasoning, list(calls.values()), reasons[-1]


def test_calls_whole(client):
    choice = ask(client, TWO_CALLS, tools=[ADD, NOW])
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "→"
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name) == ("function", "add")
    assert json.loads(first.function.arguments) == {"a": 1}
    assert second.function.arguments == "{}"
    assert first.id.startswith("call_")
    assert first.id != second.id


def test_calls_streamed(client):
    content, _, calls, reason = streamed(client, TWO_CALLS, tools=[ADD, NOW])
    assert (content, reason) == ("→", "tool_calls")
    assert [call[:2] for call in calls] == [["add", '{"a": 1}'], ["now", "{}"]]
    assert calls[0][2] != calls[1][2]


def test_arguments_arrive_in_fragments(client):
    stream = client.chat.completions.create(
        model="echo", messages=say(TWO_CALLS), tools=[ADD, NOW], stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    fragments = [d for d in deltas if d.tool_calls and d.tool_calls[0].id is None]
    assert len(fragments) > 5


def test_the_clients_own_accumulator(client):
    with client.chat.completions.stream(
        model="echo", messages=say(TWO_CALLS), tools=[ADD, NOW]
    ) as stream:
        final = stream.get_final_completion()
    assert [c.function.name for c in final.choices[0].message.tool_calls] == ["add", "now"]


def test_without_tools_the_markers_are_text(client):
    for more in ({}, {"tools": [ADD], "tool_choice": "none"}):
        choice = ask(client, TWO_CALLS, **more)
        assert choice.message.content == f"→{TWO_CALLS}"
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning(client, stream):
    text = "<think>\na < b\n</think>\n\nIt is b."
    if stream:
        assert streamed(client, text) == ("→It is b.", "a < b", [], "stop")
    else:
        message = ask(client, text).message
        assert (message.content, message.reasoning_content) == ("→It is b.", "a < b")
        assert message.reasoning == "a < b"


@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_call_is_text_and_bad_arguments_are_passed_on(client, stream):
    broken = "<tool_call>add(1)</tool_call>"
    bad = '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>'
    if stream:
        assert streamed(client, broken, tools=[ADD]) == (f"→{broken}", "", [], "stop")
        _, _, (call,), reason = streamed(client, bad, tools=[ADD])
        assert (call[:2], reason) == (["add", '{"a": }'], "tool_calls")
    else:
        assert ask(client, broken, tools=[ADD]).message.content == f"→{broken}"
        (call,) = ask(client, bad, tools=[ADD]).message.tool_calls
        assert call.function.arguments == '{"a": }'


def test_a_call_that_is_cut_off_says_length(client):
    choice = ask(client, TWO_CALLS, tools=[ADD, NOW], max_tokens=45)
    assert choice.finish_reason == "length"
    (call,) = choice.message.tool_calls
    assert call.function.arguments.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_calls_are_enforced(client, choice, stream):
    more = {"tools": [ADD], "tool_choice": choice, "parallel_tool_calls": False}
    if stream:
        content, _, calls, reason = streamed(client, "no call at all", **more)
        ((name, arguments, _),) = calls
    else:
        found = ask(client, "no call at all", **more)
        content, reason = found.message.content, found.finish_reason
        ((name, arguments),) = [
            (c.function.name, c.function.arguments) for c in found.message.tool_calls
        ]
    assert (content or "", name, reason) == ("", "add", "tool_calls")
    assert json.loads(arguments)["a"] in (1, 2)


def test_a_whole_round(client):
    call = ask(client, TWO_CALLS, tools=[ADD, NOW]).message
    messages = [
        *say("add"),
        call.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": c.id, "content": "3"} for c in call.tool_calls),
    ]
    answer = client.chat.completions.create(model="echo", messages=messages, tools=[ADD, NOW])
    assert "3" in answer.choices[0].message.content


def test_logprobs_go_on(client):
    choice = ask(client, TWO_CALLS, tools=[ADD, NOW], logprobs=True)
    assert len(choice.logprobs.content) > 50
    stream = client.chat.completions.create(
        model="echo", messages=say(TWO_CALLS), tools=[ADD, NOW], logprobs=True, stream=True
    )
    found = [c.choices[0].logprobs for c in stream if c.choices[0].logprobs]
    assert sum(len(each.content) for each in found) == len(choice.logprobs.content)


DEEP = '{"properties":{"a":' * 60_000 + "{}" + "}}" * 60_000
CYCLE = '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'
BOMBS = {
    "deep": DEEP,
    "cycle": CYCLE,
    "unclosed": '{"type":"object","properties":{"a":{"type":"string","pattern":"(((("}}}',
    "exponential": '{"type":"object","properties":{"a":{"type":"string","pattern":"(a+)+$"}}}',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bad_schema_is_a_400_and_the_server_lives(scripted, bomb):
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{BOMBS[bomb]}}}}}'
    head = '{"messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":['
    reply = scripted.post("/v1/chat/completions", f"{head}{tool}]}}")
    assert reply.status == 400, reply.body[:300]
    assert reply.error()["type"] == "invalid_request_error"
    assert scripted.post("/generate", {"prompt": "a"}).body == "→a".encode()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": "add"}, "tools"),
        ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [ADD], "structured_outputs": {"regex": "a+"}}, "tools"),
        ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_is_wrong_is_named(scripted, more, param):
    reply = scripted.post("/v1/chat/completions", {"messages": say("hi"), **more})
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_generate_takes_tools_too(scripted):
    body = {"messages": say(f"<think>hm</think>{TWO_CALLS}"), "tools": [ADD, NOW]}
    whole = scripted.post("/generate", body, Accept="application/json").json()
    calls = [call["function"]["name"] for call in whole["tool_calls"]]
    assert (whole["text"], whole["reasoning"], calls) == ("→", "hm", ["add", "now"])
    assert whole["finish_reason"] == "tool_calls"
    lines = scripted.post("/generate", body, Accept="application/x-ndjson").body.splitlines()
    last = json.loads(lines[-1])
    assert [call["function"]["name"] for call in last["tool_calls"]] == ["add", "now"]
    assert scripted.post("/generate", {"prompt": "a", "tools": [ADD]}).status == 400
    plain = scripted.post("/generate", {"messages": say("a")}, Accept="application/json").json()
    assert "tool_calls" not in plain


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_gives_values_to_the_template(serve_echo, tmp_path, stream):
    template = (
        "{% if enable_thinking %}<think>{% endif %}{{ reasoning_effort }}{{ messages[0].content }}"
    )
    bundle = make_echo_bundle(tmp_path / "bundle", chat_template=template)
    live = serve_echo(bundle=bundle)
    body = {"messages": say("hi"), "stream": stream}
    assert "low" not in live.post("/v1/chat/completions", body).body.decode()
    more = {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}
    reply = live.post("/v1/chat/completions", {**body, **more})
    if not stream:
        message = reply.json()["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("→", "lowhi")
        assert live.post("/generate", {**body, **more}).error()["param"] == "reasoning_effort"
        del more["reasoning_effort"]
        assert live.post("/generate", {**body, **more}).body.decode() == "→<think>hi"
    wrong = {"chat_template_kwargs": {"messages": []}}
    for path in ("/v1/chat/completions", "/generate"):
        reply = live.post(path, {**body, **wrong})
        assert (reply.status, reply.error()["param"]) == (400, "chat_template_kwargs.messages")
    for path in ("/v1/completions", "/generate"):
        reply = live.post(path, {"prompt": "a", "chat_template_kwargs": {"a": 1}})
        assert (reply.status, reply.error()["param"]) == (400, "chat_template_kwargs")
