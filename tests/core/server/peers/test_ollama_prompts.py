"""What models are given to read of the requests of Ollama's clients."""

from __future__ import annotations

import ollama
import pytest

from .asking import chat, generate, user

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture
def telling(serve_template):
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
    with ollama.Client(host=serve_template(template).url) as client:
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


def test_a_model_without_a_template_is_given_the_prompt_as_it_is(serve_template):
    with ollama.Client(host=serve_template(None).url) as client:
        assert generate(client, "hi")[0] == "→hi"
        with pytest.raises(ollama.ResponseError, match="no chat template"):
            chat(client, "hi")


def test_the_answer_goes_on_from_what_the_assistant_has_begun(telling):
    begun = {"role": "assistant", "content": "It is"}
    assert telling.chat("echo", [user("?"), begun]).message.content == "→[user:?][assistant:It is"
