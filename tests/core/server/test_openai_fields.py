"""Fields of OpenAI's routes beside the usual ones, each as the original has it or as vLLM does."""

import json

import openai
import pytest

from twostroke.testing import make_echo_bundle

HI = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{# <tool_call> <think> #}{% if tools %}{% endif %}{% for m in messages %}{{ m.content }}"
    "{% if not loop.last or m.role == 'assistant' %}#{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{% else %}!{% endif %}"
)
ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def live(serve_echo, bundle):
    return serve_echo(bundle=bundle)


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, said, **more):
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return client.chat.completions.create(model="echo", messages=messages, **more)


def test_the_fingerprint_is_the_models(client):
    whole = ask(client, "a")
    assert whole.system_fingerprint.startswith("fp_")
    chunks = [*ask(client, "b", stream=True), client.completions.create(model="echo", prompt="a")]
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}


def test_the_tier_is_told_to_who_names_one(client, live):
    assert ask(client, "a").service_tier is None
    assert ask(client, "a", service_tier="flex").service_tier == "default"
    reply = live.post(CHAT, {"messages": HI, "service_tier": "best"})
    assert (reply.status, reply.error()["param"]) == (400, "service_tier")


def test_reasoning_tokens_are_counted(client):
    usage = ask(client, "<think>\na < b\n</think>\n\nIt is b.").usage
    assert 5 <= usage.completion_tokens_details.reasoning_tokens <= len("<think>\na < b\n")
    assert ask(client, "It is b.").usage.completion_tokens_details.reasoning_tokens == 0
    *_, last = ask(client, "<think>cut off", stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens >= len("cut off")


def test_obfuscation_is_there_for_who_asks(client):
    assert all("obfuscation" not in chunk.to_dict() for chunk in ask(client, "a", stream=True))
    options = {"include_obfuscation": True}
    chunks = list(ask(client, "hello", stream=True, stream_options=options))
    assert all(0 < len(chunk.to_dict()["obfuscation"]) <= 16 for chunk in chunks)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("stop", [{}, {"stop": "b"}])
def test_an_answer_is_no_shorter_than_it_must_be(live, path, stop):
    body = {"prompt": "abc", "min_tokens": 9, "max_tokens": 20, "temperature": 0, **stop}
    reply = live.post(path, body, Accept="application/json").json()
    usage = reply.get("usage") or {"completion_tokens": reply["num_completion_tokens"]}
    assert usage["completion_tokens"] >= 9
    wrong = live.post(path, {**body, "max_tokens": 8})
    assert (wrong.status, wrong.error()["param"]) == (400, "min_tokens")


def test_functions_in_their_older_form(client):
    call = ask(client, CALL, functions=[ADD]).choices[0]
    assert (call.message.function_call.name, call.finish_reason) == ("add", "function_call")
    assert json.loads(call.message.function_call.arguments) == {"a": 1}
    assert call.message.tool_calls is None
    name, arguments = "", ""
    for chunk in ask(client, CALL, functions=[ADD], stream=True):
        called = chunk.choices[0].delta.function_call
        name += (called and called.name) or ""
        arguments += (called and called.arguments) or ""
    assert (name, json.loads(arguments)) == ("add", {"a": 1})
    assert chunk.choices[0].finish_reason == "function_call"
    none = ask(client, CALL, functions=[ADD], function_call="none").choices[0]
    assert none.message.content == f"→{CALL}"
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "function_call": {"name": "add", "arguments": "{}"}},
        {"role": "function", "name": "add", "content": "3"},
    ]
    assert "3" in ask(client, messages, functions=[ADD]).choices[0].message.content


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": {"name": "a"}}, "functions"),
        ({"functions": [ADD], "function_call": "always"}, "function_call"),
        ({"functions": [ADD], "function_call": {"name": "no"}}, "function_call"),
        ({"functions": [ADD], "tools": [{"type": "function", "function": ADD}]}, "functions"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        (
            {"messages": [{"role": "assistant", "content": " "}], "continue_final_message": True},
            "continue_final_message",
        ),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_what_is_wrong_is_named(live, more, param):
    reply = live.post(CHAT, {"messages": HI, **more})
    assert (reply.status, reply.error()["param"]) == (400, param), reply.body


def test_the_last_message_may_be_gone_on_with(client):
    messages = [*HI, {"role": "assistant", "content": "Well, "}]
    more = {"continue_final_message": True}
    assert ask(client, messages, extra_body=more).choices[0].message.content == "→hi#Well, "
    assert ask(client, messages).choices[0].message.content == "→hi#Well, #"
    closed = ask(client, messages, extra_body={"add_generation_prompt": False})
    assert closed.choices[0].message.content == "→hi#Well, #!"


def test_a_refusal_is_what_the_assistant_said(client):
    messages = [
        {"role": "assistant", "content": None, "refusal": "No.", "audio": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        *HI,
    ]
    assert ask(client, messages).choices[0].message.content == "→No.#Never.#hi"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (CHAT, {}, "missing_required_parameter"),
        (CHAT, {"messages": "hi"}, "invalid_type"),
        (CHAT, {"messages": []}, "invalid_value"),
        (CHAT, {"messages": HI, "temperature": "warm"}, "invalid_type"),
        (CHAT, {"messages": HI, "service_tier": "x"}, "invalid_value"),
        ("/generate", {"prompt": "a", "user": "me"}, "unknown_parameter"),
    ],
)
def test_each_kind_of_mistake_has_its_code(live, path, body, code):
    assert live.post(path, body).error()["code"] == code


def test_no_effort_is_no_thinking(serve_echo, tmp_path):
    template = "{{ enable_thinking }} {{ reasoning_effort }} {{ verbosity }}"
    live = serve_echo(bundle=make_echo_bundle(tmp_path / "bundle", chat_template=template))
    body = {"messages": HI, "reasoning_effort": "none", "verbosity": "low"}
    said = live.post(CHAT, body).json()["choices"][0]["message"]["content"]
    assert said == "→False none low"
    asked = {"input": "hi", "reasoning": {"effort": "high"}, "text": {"verbosity": "low"}}
    (item,) = live.post("/v1/responses", asked).json()["output"]
    assert item["content"][0]["text"] == "→ high low"
