"""What models are given to read of the requests of Anthropic's clients."""

from __future__ import annotations

import anthropic
import pytest

from .asking import user

ADD = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {}}}}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def telling(serve_template):
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
    url = serve_template(template).url
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
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


def test_the_answer_goes_on_from_what_the_assistant_has_begun(telling):
    call = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    begun = {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}
    assert telling(user("?"), begun) == "[user:?][assistant:It is"
    blank = {"role": "assistant", "content": " "}
    assert telling(user("?"), blank) == "[user:?]"
    for bad in ([user("?"), {"role": "assistant", "content": [call]}], [begun]):
        with pytest.raises(anthropic.BadRequestError, match="goes on from text"):
            telling(*bad)
