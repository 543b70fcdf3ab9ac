"""langchain-openai: ChatOpenAI on chat completions and on responses, OpenAI on completions."""

from __future__ import annotations

from typing import Any, Literal

import openai
from asking import FACTS, MESSAGES, cell, equal, refused
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL = f"{FACTS.url}/v1"
COMMON = {"base_url": URL, "temperature": 0, "max_retries": 0}


class Capital(BaseModel):
    city: Literal["Paris", "London"]


@tool
def weather(city: Literal["Paris", "London"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def chat(**changed: Any) -> ChatOpenAI:
    settings = {"api_key": FACTS.key, "model": FACTS.model, "max_tokens": FACTS.max_tokens}
    return ChatOpenAI(**{**COMMON, **settings, **changed})


def check_answer(message) -> None:
    equal(message.text, FACTS.chat.text)
    equal(message.usage_metadata["input_tokens"], FACTS.chat.num_prompt_tokens)
    equal(message.usage_metadata["output_tokens"], FACTS.chat.num_completion_tokens)


def check_calls(message) -> None:
    assert message.tool_calls, message
    for call in message.tool_calls:
        equal(call["name"], "weather")
        assert weather.invoke(call["args"]) in ("rain in Paris", "rain in London")


def joined(chunks):
    first, *others = chunks
    for chunk in others:
        first += chunk
    return first


@cell("chat", "whole")
def _() -> None:
    check_answer(chat().invoke(MESSAGES))
    assert chat().with_structured_output(Capital).invoke(MESSAGES).city in ("Paris", "London")
    check_calls(chat(max_tokens=64).bind_tools([weather], tool_choice="any").invoke(MESSAGES))
    stranger = chat(api_key=FACTS.wrong_key)
    refused(openai.AuthenticationError, lambda: stranger.invoke(MESSAGES))
    refused(openai.NotFoundError, lambda: chat(model="no-such-model").invoke(MESSAGES))
    refused(openai.InternalServerError, lambda: chat(model=FACTS.broken).invoke(MESSAGES))


@cell("chat", "streamed")
def _() -> None:
    chunks = list(chat(stream_usage=True).stream(MESSAGES))
    assert len([chunk for chunk in chunks if chunk.text]) > 1
    check_answer(joined(chunks))
    calling = chat(max_tokens=64).bind_tools([weather], tool_choice="any")
    check_calls(joined(calling.stream(MESSAGES)))
    refused(ContextOverflowError, lambda: list(chat().stream(FACTS.too_long)))


@cell("responses", "whole")
def _() -> None:
    check_answer(chat(use_responses_api=True).invoke(MESSAGES))
    calling = chat(use_responses_api=True, max_tokens=64).bind_tools(
        [weather], tool_choice="any", strict=True
    )
    check_calls(calling.invoke(MESSAGES))


@cell("responses", "streamed")
def _() -> None:
    check_answer(joined(chat(use_responses_api=True).stream(MESSAGES)))


def completion() -> OpenAI:
    settings = {"api_key": FACTS.key, "model": FACTS.model, "max_tokens": FACTS.max_tokens}
    return OpenAI(**COMMON, **settings)


@cell("completions", "whole")
def _() -> None:
    equal(completion().invoke(FACTS.prompt), FACTS.completion.text)


@cell("completions", "streamed")
def _() -> None:
    equal("".join(completion().stream(FACTS.prompt)), FACTS.completion.text)
