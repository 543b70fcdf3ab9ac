"""Which parser a model gets, and which control tokens it sees."""

import re
from pathlib import Path

import pytest
from tokenizers import AddedToken

from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import hookimpl
from twostroke.errors import ConfigError, PluginError
from twostroke.model.events import AnswerText
from twostroke.testing.bundles import byte_tokenizer
from twostroke.text import Tokenizer
from twostroke.text.parsers import (
    CallArguments,
    CallBegin,
    Content,
    ParserSpec,
    Reasoning,
    Sections,
    choose_reader,
)
from twostroke.text.tools import tool_use
from twostroke.types import Request, TokenEvent

TEMPLATE = "<tool_call>"


@pytest.fixture(scope="module")
def specs():
    return load_plugins().parsers


@pytest.fixture(scope="module")
def tokenizer():
    core = byte_tokenizer()
    core.add_special_tokens([AddedToken("<tool_call>", special=True), AddedToken("<mask>")])
    core.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return Tokenizer(core, template_source=TEMPLATE)


def test_auto_none_and_a_name(specs, tokenizer):
    chosen = choose_reader(specs, "auto", TEMPLATE, tokenizer)
    assert (chosen.spec.name, chosen.template) == ("hermes", TEMPLATE)
    named = choose_reader(specs, "mistral", TEMPLATE, tokenizer)
    assert (named.spec.name, named.template) == ("mistral", "")
    assert choose_reader(specs, "none", TEMPLATE, tokenizer) is None
    assert choose_reader(specs, "auto", None, tokenizer) is None
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        choose_reader(specs, "herms", TEMPLATE, tokenizer)


def test_a_template_without_tools_answers_in_the_form_it_is_told_them_in(specs, tokenizer):
    template = "<｜tool▁calls▁begin｜> <think>"  # DeepSeek's own: calls in the past, no tools
    reader = choose_reader(specs, "auto", template, tokenizer, takes_tools=False)
    assert reader.spec.name == "deepseek_v31"
    assert reader.spec.calls == specs["generic"].calls
    named = choose_reader(specs, "deepseek_v31", template, tokenizer, takes_tools=False)
    assert named.spec.calls == specs["deepseek_v31"].calls
    assert named.spec.other_calls == (specs["generic"].calls,)
    use = tool_use([{"type": "function", "function": {"name": "f"}}])
    for call in (
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ):
        parser = reader.read(tokenizer, (5,), use)
        deltas = [*parser.push(f"<think>hm</think>{call}"), *parser.finish()]
        assert deltas == [Reasoning("hm"), CallBegin(0, "f"), CallArguments(0, "{}")]


@pytest.mark.parametrize("opened", ["<think>", "<think>\n"])
def test_a_section_that_the_prompt_has_opened_is_read_to_its_end(specs, tokenizer, opened):
    template = "{{ '<｜Assistant｜><think>\\n' }}</think>"  # DeepSeek R1's, Qwen3-thinking's
    reader = choose_reader(specs, "auto", template, tokenizer)
    ids = tuple(tokenizer.encode(f"hi{opened}", special=True, add_bos=False))
    parser = reader.read(tokenizer, ids)
    deltas = [*parser.push("so\n</think>\n\n4"), *parser.finish()]
    assert deltas == [Reasoning("so"), Content("4")]
    ids = tuple(tokenizer.encode("hi</think>", special=True, add_bos=False))  # V3.1, not thinking
    parser = reader.read(tokenizer, ids)
    assert [*parser.push("4"), *parser.finish()] == [Content("4")]


def test_markers_that_are_control_tokens_become_text_for_the_parser(specs, tokenizer):
    reader = choose_reader(specs, "auto", TEMPLATE, tokenizer)
    marker, mask = tokenizer.control.ids["<tool_call>"], tokenizer.control.ids["<mask>"]
    assert reader.shown_ids == {marker}
    ids = tokenizer.encode("é<tool_call><mask>x<think>", special=True, add_bos=False)
    assert {marker, mask} <= set(ids)
    for shown, expected in ((reader.shown_ids, "é<tool_call>x<think>"), (frozenset(), "éx<think>")):
        text = AnswerText(tokenizer, Request("r", (5,)), 0.0, shown_ids=shown)
        events = [event for i, each in enumerate(ids) for event in text.take(TokenEvent(each, i))]
        assert "".join(event.text for event in events) == expected


def test_a_plugin_brings_a_parser(specs, tokenizer):
    class Plugin:
        @hookimpl
        def twostroke_parsers(self):
            return [ParserSpec("mine", 1, "mine", [["<tool_call>"]], Sections, priority=99)]

    plugins = load_plugins(extra=[Plugin()])
    assert plugins.records[-1].parsers == ("mine",)
    assert choose_reader(plugins.parsers, "auto", TEMPLATE, tokenizer).spec.name == "mine"


def test_two_parsers_of_one_name_are_an_error():
    class Plugin:
        @hookimpl
        def twostroke_parsers(self):
            return [ParserSpec("hermes", 1, "mine", [], Sections)]

    with pytest.raises(PluginError, match="parser named 'hermes'"):
        load_plugins(extra=[Plugin()])


def test_the_documentation_lists_every_family(specs):
    page = Path(__file__).parents[4] / "docs/structure.md"
    table = page.read_text(encoding="utf-8").partition("## Families")[2].partition("## Several")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == specs.keys()
