"""Calls of functions and reasoning for people who write Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import RequestError
from twostroke.model import Model
from twostroke.testing import echo, make_echo_bundle

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
ADD = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SAID = [{"role": "user", "content": f"<think>hm</think>{CALL}"}]


def opened(bundle: Path, parser: str = "auto") -> Model:
    config = ModelConfig(name="echo", source=str(bundle), backend="echo", parser=parser)
    return Model.from_config(config, plugins=load_plugins(extra=[echo]))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_echo_bundle(tmp_path_factory.mktemp("b") / "echo", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def model(bundle: Path) -> Iterator[Model]:
    with opened(bundle) as model:
        yield model


def test_a_completion_holds_calls_and_reasoning(model: Model) -> None:
    answer = model.generate(SAID, tools=[ADD])
    assert "".join(map(str, answer)) == f"→{SAID[0]['content']}"  # tokens are all the model wrote
    done = answer.completion
    assert done is not None
    assert (done.text, done.reasoning) == ("→", "hm")
    assert [(c.name, c.arguments) for c in done.tool_calls] == [("add", '{"a": 1}')]


async def test_asynchronously_and_enforced(model: Model) -> None:
    done = await model.stream(SAID, tools=[ADD], tool_choice="required", max_tokens=200).complete()
    assert done.tool_calls[0].name == "add"


def test_prompts_and_constraints_take_no_tools(model: Model) -> None:
    with pytest.raises(RequestError, match="need messages"):
        model.generate("abc", tools=[ADD])
    with pytest.raises(RequestError, match="cannot call functions"):
        model.generate(SAID, tools=[ADD], regex="a+")
    assert model.complete(SAID, choice=["<think>x"]).text == "<think>x"


def test_a_model_without_a_parser(bundle: Path) -> None:
    with opened(bundle, "none") as model:
        assert model.complete(SAID).text == f"→{SAID[0]['content']}"
        with pytest.raises(RequestError, match="its parser is none"):
            model.generate(SAID, tools=[ADD])


@pytest.mark.parametrize("family", ["qwen3_coder", "pythonic", "functools", "mistral_v11"])
def test_calls_are_enforced_and_read_in_the_form_of_a_family(bundle: Path, family: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [7]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    choice = {"type": "function", "function": {"name": "add"}}
    with opened(bundle, family) as model:
        done = model.complete(SAID, tools=[tool], tool_choice=choice, max_tokens=300)
    (call,) = done.tool_calls
    assert (call.name, json.loads(call.arguments), done.text) == ("add", {"a": 7}, "")


def test_arguments_have_the_types_of_their_schema(bundle: Path) -> None:
    properties = {"count": {"type": "integer"}, "text": {"type": "string"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    values = "<parameter=count>\n5\n</parameter>\n<parameter=text>\n5\n</parameter>\n"
    said = f"<tool_call>\n<function=f>\n{values}</function>\n</tool_call>"
    with opened(bundle, "qwen3_coder") as model:
        done = model.complete([{"role": "user", "content": said}], tools=[tool])
    assert [call.arguments for call in done.tool_calls] == ['{"count": 5, "text": "5"}']
