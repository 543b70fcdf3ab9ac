"""ollama: chat, generate, and what it lists of models."""

from __future__ import annotations

import json

import ollama
from asking import FACTS, MESSAGES, SCHEMA, cell, equal, refused

OPTIONS = {"temperature": 0, "num_predict": FACTS.max_tokens}
CHAT = {"model": FACTS.model, "messages": MESSAGES, "options": OPTIONS}
GENERATE = {"model": FACTS.model, "prompt": FACTS.prompt, "raw": True, "options": OPTIONS}
FUNCTION = {"name": "weather", "description": "the weather of a city", "parameters": SCHEMA}


def asking(key: str) -> ollama.Client:
    return ollama.Client(host=FACTS.url, headers={"Authorization": f"Bearer {key}"})


client = asking(FACTS.key)


def check_facts(answer, wanted) -> None:
    assert answer.done
    equal(answer.done_reason, wanted.finish_reason)
    equal(answer.prompt_eval_count, wanted.num_prompt_tokens)
    equal(answer.eval_count, wanted.num_completion_tokens)
    assert answer.total_duration > 0


def check_refusal(status: int, call) -> None:
    equal(refused(ollama.ResponseError, call).status_code, status)


@cell("ollama chat", "whole")
def _() -> None:
    answer = client.chat(**CHAT)
    equal(answer.message.content, FACTS.chat.text)
    check_facts(answer, FACTS.chat)
    constrained = client.chat(**CHAT, format=SCHEMA)
    assert json.loads(constrained.message.content)["city"] in ("Paris", "London")
    # Ollama's clients cannot ask for a call; that a model may call changes what it reads.
    told = client.chat(**CHAT, tools=[{"type": "function", "function": FUNCTION}])
    assert told.prompt_eval_count > FACTS.chat.num_prompt_tokens
    check_refusal(401, lambda: asking(FACTS.wrong_key).chat(**CHAT))
    check_refusal(404, lambda: client.chat(**{**CHAT, "model": "no-such-model"}))


@cell("ollama chat", "streamed")
def _() -> None:
    parts = list(client.chat(**CHAT, stream=True))
    equal("".join(part.message.content or "" for part in parts), FACTS.chat.text)
    equal([part.done for part in parts], [False] * (len(parts) - 1) + [True])
    check_facts(parts[-1], FACTS.chat)
    too_long = {**CHAT, "messages": [{"role": "user", "content": FACTS.too_long}]}
    check_refusal(400, lambda: list(client.chat(**too_long, stream=True)))


@cell("ollama generate", "whole")
def _() -> None:
    answer = client.generate(**GENERATE)
    equal(answer.response, FACTS.completion.text)
    check_facts(answer, FACTS.completion)
    check_refusal(503, lambda: client.generate(**{**GENERATE, "model": FACTS.broken}))


@cell("ollama generate", "streamed")
def _() -> None:
    parts = list(client.generate(**GENERATE, stream=True))
    equal("".join(part.response for part in parts), FACTS.completion.text)
    check_facts(parts[-1], FACTS.completion)
    running = asking(FACTS.one_at_a_time)
    endless = {**GENERATE, "options": {"num_predict": 1000}}
    stream = running.generate(**endless, stream=True)
    next(stream)
    check_refusal(429, lambda: running.generate(**GENERATE))
    stream.close()


@cell("ollama models", "whole")
def _() -> None:
    assert f"{FACTS.model}:latest" in [model.model for model in client.list().models]
    shown = client.show(FACTS.model)
    assert "completion" in shown.capabilities
    assert FACTS.model in str(client.ps().models)
    check_refusal(404, lambda: client.show("no-such-model"))
