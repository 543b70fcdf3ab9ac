"""Ollama's surface, by the official client.

The template of these bundles hands the last message to the echo model, so a test writes the answer.
"""

from __future__ import annotations

import json
from datetime import datetime

import ollama
import pytest

from twostroke.server.surfaces.ollama.names import served_name, tagged_name
from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
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
THOUGHT = "<think>\na < b\n</think>\n\nIt is b."


@pytest.fixture(scope="module")
def script_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def scripted(serve_echo, script_bundle):
    return serve_echo(bundle=script_bundle)


@pytest.fixture
def client(scripted):
    with ollama.Client(host=scripted.url) as client:
        yield client


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request):
    return request.param


def user(content):
    return {"role": "user", "content": content}


def chat(client, text, *, stream=False, **more):
    """Content, thinking, calls and the last line."""
    given = {"model": "echo", "messages": [user(text)], "stream": stream, **more}
    lines = list(client.chat(**given)) if stream else [client.chat(**given)]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    messages = [line.message for line in lines]
    assert {message.role for message in messages} == {"assistant"}
    return (
        "".join(message.content for message in messages),
        "".join(message.thinking or "" for message in messages),
        [call.function for message in messages for call in message.tool_calls or ()],
        lines[-1],
    )


def generate(client, prompt, *, stream=False, **more):
    """Response, thinking and the last line."""
    given = {"model": "echo", "prompt": prompt, "stream": stream, **more}
    lines = list(client.generate(**given)) if stream else [client.generate(**given)]
    text = "".join(line.response for line in lines)
    return text, "".join(line.thinking or "" for line in lines), lines[-1]


def test_a_chat(client, stream):
    text, thinking, calls, end = chat(client, "hi", stream=stream)
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


def test_calls_are_whole(client, stream):
    text, _, calls, end = chat(client, TWO_CALLS, stream=stream, tools=[ADD])
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


def test_thinking(client, stream):
    for think in (None, True, "low"):
        text, thinking, _, _ = chat(client, THOUGHT, stream=stream, think=think)
        assert (text, thinking) == ("→It is b.", "a < b")
    assert generate(client, THOUGHT, stream=stream)[:2] == ("→It is b.", "a < b")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"num_predict": 3}, "→ab", "length"),
        ({"num_predict": -1, "num_ctx": 9, "num_gpu": 4, "seed": -1}, "→abcdef", "stop"),
        ({"stop": ["cd"], "top_k": 4, "min_p": 0.1, "typical_p": 1.0}, "→ab", "stop"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, "→abcdef", "stop"),
    ],
)
def test_options(client, stream, options, text, reason):
    said, _, _, end = chat(client, "abcdef", stream=stream, options=options)
    assert (said, end.done_reason) == (text, reason)


def test_a_format_is_followed(client, stream):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert json.loads(chat(client, "x", stream=stream, format=schema)[0]) == {"a": 1}
    assert json.loads(generate(client, "x", stream=stream, format=schema)[0]) == {"a": 1}


def test_any_json(scripted):
    body = {"prompt": "x", "format": "json", "stream": False, "options": {"num_predict": 1}}
    assert scripted.post("/api/generate", body).json()["response"].strip() in ("{", "")
    assert scripted.post("/api/generate", {**body, "format": "xml"}).status == 400


def test_logprobs(client, stream):
    given = {"model": "echo", "messages": [user("ab")], "logprobs": True, "top_logprobs": 2}
    answer = client.chat(stream=stream, **given)
    lines = list(answer) if stream else [answer]
    found = [each for line in lines for each in line.logprobs or ()]
    assert [each.token for each in found] == ["→", "a", "b"]
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in found)


def test_generate_asks_through_the_template(telling, stream):
    text, _, _ = generate(telling, "hi", system="Be", stream=stream)
    assert text == "→[system:Be][user:hi]"
    text, _, _ = generate(telling, "hi", think=True, stream=stream)
    assert text == "→[user:hi]think=True"
    raw, _, end = generate(telling, "hi", raw=True, stream=stream)
    assert (raw, end.context, end.prompt_eval_count) == ("→hi", None, 2)


def test_a_context_goes_on(telling, stream):
    _, _, first = generate(telling, "ab", stream=stream)
    prompt = "[user:ab]"
    assert len(first.context) == 2 * len(prompt) + 1
    _, _, second = generate(
        telling, "cd", context=first.context, stream=stream, options={"num_predict": 2}
    )
    assert second.context[: len(first.context)] == first.context
    assert second.prompt_eval_count == len(first.context) + len(prompt)


def test_a_model_without_a_template_is_given_the_prompt_as_it_is(serve_echo, tmp_path):
    bundle = make_echo_bundle(tmp_path / "plain", chat_template=None)
    with ollama.Client(host=serve_echo(bundle=bundle).url) as client:
        assert generate(client, "hi")[0] == "→hi"
        with pytest.raises(ollama.ResponseError, match="no chat template"):
            chat(client, "hi")


@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload")])
def test_nothing_to_answer_only_loads(client, keep_alive, reason):
    for answer in (
        client.generate(model="echo", prompt="", keep_alive=keep_alive),
        client.chat(model="echo", messages=[], keep_alive=keep_alive),
        next(client.generate(model="echo", stream=True, keep_alive=keep_alive)),
    ):
        assert (answer.done, answer.done_reason) == (True, reason)


@pytest.fixture
def telling(serve_echo, tmp_path):
    """A server whose model answers with what its template was given."""
    template = (
        "{# <think> #}{% for m in messages %}[{{ m.role }}:{{ m.content }}"
        "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
        "{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }}"
        "{{ c.function.arguments | tojson }}>{% endfor %}"
        "{% if m.name %}={{ m.name }}{% endif %}"
        "{% if m.tool_call_id %}@{{ m.tool_call_id }}{% endif %}]{% endfor %}"
        "{% if enable_thinking is defined %}think={{ enable_thinking }}{% endif %}"
        "{% if reasoning_effort is defined %} {{ reasoning_effort }}{% endif %}"
        "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
    )
    bundle = make_echo_bundle(tmp_path / "telling", chat_template=template, context_tokens=2048)
    with ollama.Client(host=serve_echo(bundle=bundle).url) as client:
        yield client


def called(name, **arguments):
    return {"function": {"name": name, "arguments": arguments}}


def test_a_conversation_reaches_the_template(telling):
    messages = [
        {"role": "system", "content": "Be brief."},
        user("?"),
        {
            "role": "assistant",
            "content": "",
            "thinking": "easy",
            "tool_calls": [called("add", a=1), called("now")],
        },
        {"role": "tool", "content": "noon", "tool_name": "now"},
        {"role": "tool", "content": "2", "tool_name": "add"},
        {"role": "assistant", "tool_calls": [called("add", a=2)]},
        {"role": "tool", "content": "3"},
    ]
    assert telling.chat("echo", messages).message.content == (
        '→[system:Be brief.][user:?][assistant:(easy)<call_0 add{"a": 1}><call_1 now{}>]'
        '[tool:noon=now@call_1][tool:2=add@call_0][assistant:<call_2 add{"a": 2}>]'
        "[tool:3=add@call_2]"
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, ""),
        ({"think": False}, "think=False"),
        ({"think": True}, "think=True"),
        ({"think": "high"}, "think=True high"),
        ({"tools": [ADD]}, "add,"),
    ],
)
def test_what_the_template_is_told_of_thinking_and_tools(telling, asked, told):
    assert chat(telling, "x", **asked)[0] == f"→[user:x]{told}"


def test_who_cannot_think_is_not_told_to(serve_echo):
    with ollama.Client(host=serve_echo().url) as client:
        with pytest.raises(ollama.ResponseError, match="does not support thinking") as raised:
            chat(client, "x", think=True)
        assert raised.value.status_code == 400
        assert chat(client, "x", think=False)[0].startswith("→")


def test_models_are_listed_and_shown(client, scripted):
    (listed,) = client.list().models
    bundle = scripted.model.bundle
    assert listed.model == "echo:latest"
    assert listed.digest == bundle.manifest.manifest_sha256
    assert listed.size == bundle.num_bytes
    assert listed.details.format == "onnx"
    assert (listed.details.family, listed.details.quantization_level) == ("echo", "FP32")
    shown = client.show("echo")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template == TEMPLATE
    assert shown.modelinfo["general.architecture"] == "echo"
    assert shown.modelinfo["echo.context_length"] == 2048
    assert shown.parameters.split() == ["temperature", "0.0"]
    (running,) = client.ps().models
    assert (running.model, running.size_vram, running.context_length) == ("echo:latest", 0, 2048)
    assert running.size > 0


def test_clients_probe_the_version(scripted):
    assert scripted.get("/api/version").json()["version"].count(".") == 2
    for path in ("/api/version", "/api/tags"):
        assert scripted.ask("HEAD", path).status == 200


def test_a_model_goes_by_its_name_with_and_without_latest(client, scripted):
    for name in ("echo", "echo:latest"):
        assert client.chat(name, [user("x")]).model == name
        assert client.show(name).details.family == "echo"
    assert scripted.post("/api/show", {"name": "echo"}).status == 200
    with pytest.raises(ollama.ResponseError, match="'echo:7b' is not served") as raised:
        client.chat("echo:7b", [user("x")])
    assert raised.value.status_code == 404


def test_names():
    served = ("a", "org/b", "c:latest")
    for asked, found in (
        ("a", "a"),
        ("a:latest", "a"),
        ("org/b:latest", "org/b"),
        ("c:latest", "c:latest"),
        ("c", "c"),
        ("d:latest", "d:latest"),
        ("", None),
        (None, None),
    ):
        assert served_name(asked, served) == found
    assert tagged_name("a") == "a:latest"
    assert tagged_name("host:80/a") == "host:80/a:latest"
    assert tagged_name("a:7b") == "a:7b"


def test_what_would_change_the_models_is_refused_in_a_sentence(client):
    for refused in (
        lambda: client.create("new", from_="echo"),
        lambda: client.copy("echo", "other"),
        lambda: client.push("echo"),
        lambda: client.delete("echo"),
    ):
        with pytest.raises(ollama.ResponseError, match="change it there") as raised:
            refused()
        assert raised.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="no embeddings"):
        client.embed("echo", "x")


def test_pulling_what_is_served_is_done_at_once(client):
    assert client.pull("echo").status == "success"
    assert [each.status for each in client.pull("echo", stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError, match="not served"):
        client.pull("llama3")


BAD = {
    "messages[0].images": ("/api/chat", {"messages": [{**user("x"), "images": ["aa"]}]}),
    "messages[0].role": ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}),
    "messages[0].content": ("/api/chat", {"messages": [user(["x"])]}),
    "messages[0].tool_calls[0]": (
        "/api/chat",
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]},
    ),
    "format": ("/api/chat", {"messages": [user("x")], "format": 5}),
    "think": ("/api/chat", {"messages": [user("x")], "think": "hard"}),
    "keep_alive": ("/api/chat", {"messages": [user("x")], "keep_alive": "soon"}),
    "tools": ("/api/chat", {"messages": [user("x")], "tools": "add"}),
    "options.top_k": ("/api/chat", {"messages": [user("x")], "options": {"top_k": "4"}}),
    "options.mirostat": ("/api/generate", {"prompt": "x", "options": {"mirostat": 2}}),
    "top_logprobs": ("/api/generate", {"prompt": "x", "top_logprobs": 2}),
    "suffix": ("/api/generate", {"prompt": "x", "suffix": "y"}),
    "template": ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}),
    "images": ("/api/generate", {"prompt": "x", "images": ["aa"]}),
    "raw": ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}),
    "prompt[0]": ("/api/generate", {"prompt": "x", "context": [10**6]}),
    "2048": ("/api/generate", {"prompt": "x" * 3000}),
}


@pytest.mark.parametrize("named", BAD)
def test_bad_bodies_are_refused_by_the_name_of_the_field(scripted, stream, named):
    path, body = BAD[named]
    reply = scripted.post(path, {**body, "stream": stream})
    assert reply.status == 400
    assert set(reply.json()) == {"error"}
    assert named in reply.json()["error"]


def test_a_fault_in_a_stream_is_a_line(serve_echo, script_bundle):
    server = serve_echo(bundle=script_bundle, fail_decode_runs=[2])
    with (
        ollama.Client(host=server.url) as client,
        pytest.raises(ollama.ResponseError, match="decode"),
    ):
        chat(client, "abcdef", stream=True)
