"""What tests of both surfaces ask, and what their clients put together out of the answers."""

from __future__ import annotations

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
THOUGHT = "<think>\na < b\n</think>\n\nIt is b."
ONE_A = {  # a schema that one answer follows
    "type": "object",
    "properties": {"a": {"enum": [1]}},
    "required": ["a"],
    "additionalProperties": False,
}


def user(content):
    return {"role": "user", "content": content}


def ask(client, text, *, stream=False, **more):
    """A message, as Anthropic's client puts it together."""
    given = {"model": "echo", "max_tokens": 400, "messages": [user(text)], **more}
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


def chat(client, text, *, stream=False, **more):
    """By Ollama's client: content, thinking, calls and the last line."""
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
    """By Ollama's client: response, thinking and the last line."""
    given = {"model": "echo", "prompt": prompt, "stream": stream, **more}
    lines = list(client.generate(**given)) if stream else [client.generate(**given)]
    text = "".join(line.response for line in lines)
    return text, "".join(line.thinking or "" for line in lines), lines[-1]
