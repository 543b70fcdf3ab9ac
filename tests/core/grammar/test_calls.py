"""Grammars of calls accept what each family's parser reads, and nothing else."""

import json

import pytest
from tokenizers import AddedToken

from twostroke.errors import EngineError, RequestError
from twostroke.grammar import Grammars
from twostroke.grammar.calls import calls_constraint
from twostroke.testing.bundles import byte_tokenizer
from twostroke.text.parsers import CallStyle, Setup
from twostroke.text.parsers.families import FAMILIES
from twostroke.text.tools import tool_use
from twostroke.types import Constraint, ConstraintKind

EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
SPECS = {spec.name: spec for spec in FAMILIES}
UNMARKED = {"gpt_oss", "llama3", "pythonic"}  # nothing says where a call of theirs begins


def tools(*, strict=False):
    return [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": strict}}
        for name in ("f", "g")
    ]


class Vocabulary:
    """One letter a token, and a family's markers as tokens where `special` says so."""

    def __init__(self, folder, spec, special):
        self.core = byte_tokenizer()
        if special is not None:
            added = [AddedToken(text, special=special, normalized=False) for text in spec.control]
            self.core.add_tokens(added)
        path = folder / "tokenizer.json"
        self.core.save(str(path))
        found = {text: self.core.token_to_id(text) for text in spec.control}
        self.ids = {text: token_id for text, token_id in found.items() if token_id is not None}
        self.grammars = Grammars(path, self.core.get_vocab_size(), frozenset({EOS}))

    def takes(self, constraint, text):
        matcher = self.grammars.matcher(constraint)
        try:
            for token_id in self.core.encode(text).ids:
                matcher.accept(token_id)
        except EngineError:
            return False
        return matcher.is_complete or EOS in matcher.allowed(self.core.get_vocab_size())


def arguments(form, **values):
    if form.style is CallStyle.PYTHON:
        return ", ".join(f"{key}={value}" for key, value in values.items())
    if form.style is CallStyle.TAGGED:
        tags = form.argument
        parts = [tags.before_name, tags.before_value, tags.after]
        return "".join(f"{parts[0]}{key}{parts[1]}{values[key]}{parts[2]}" for key in values)
    return "{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}"


def written(form, *names, **values):
    separator, values = form.separator or "", values or {"a": 5}
    calls = [
        form.before_name + name + form.before_arguments + arguments(form, **values) + form.after
        for name in names
    ]
    return form.opening + separator.join(calls) + form.closing


@pytest.mark.parametrize("special", [True, None])
@pytest.mark.parametrize("family", SPECS)
def test_required_is_calls_and_nothing_else(tmp_path, family, special):
    spec = SPECS[family]
    words = Vocabulary(tmp_path, spec, special)
    use = tool_use(tools(), "required")
    constraint = calls_constraint(spec, Setup("", "", use.names), use, words.ids)
    one = written(spec.calls, "f")
    assert words.takes(constraint, one)
    assert not words.takes(constraint, "hello")
    assert not words.takes(constraint, written(spec.calls, "f", b=5))
    assert not words.takes(constraint, written(spec.calls, "f", a='"5"'))
    assert not words.takes(constraint, written(spec.calls, "h"))
    if spec.calls.separator is not None:
        assert words.takes(constraint, written(spec.calls, "f", "g"))
        single = tool_use(tools(), "required", False)
        constraint = calls_constraint(spec, Setup("", "", use.names), single, words.ids)
        assert words.takes(constraint, one)
        assert not words.takes(constraint, written(spec.calls, "f", "g"))


@pytest.mark.parametrize("special", [True, False, None])
def test_a_model_may_think_first(tmp_path, special):
    spec = SPECS["hermes"]
    words = Vocabulary(tmp_path, spec, special)
    use = tool_use(tools(), {"type": "function", "function": {"name": "g"}})
    call = written(spec.calls, "g")
    before = calls_constraint(spec, Setup("", "", use.names), use, words.ids)
    assert words.takes(before, call)
    assert words.takes(before, f"<think>\nhm < 5\n</think>\n\n{call}")
    within = calls_constraint(spec, Setup("", "<think>\n", use.names), use, words.ids)
    assert words.takes(within, f"hm\n</think>\n{call}")
    assert not words.takes(within, call)
    never = calls_constraint(spec, Setup("<tool_call>", "", use.names), use, words.ids)
    assert words.takes(never, call)
    assert not words.takes(never, f"<think>hm</think>{call}")


@pytest.mark.parametrize("special", [True, None])
@pytest.mark.parametrize("family", sorted(SPECS.keys() - UNMARKED))
def test_strict_calls_within_any_text(tmp_path, family, special):
    spec = SPECS[family]
    words = Vocabulary(tmp_path, spec, special)
    use = tool_use(tools(strict=True))
    constraint = calls_constraint(spec, Setup("", "", use.names), use, words.ids)
    one = written(spec.calls, "f")
    for text in ("hello", one, f"hello {one}", f"{one} bye"):
        assert words.takes(constraint, text)
    assert not words.takes(constraint, written(spec.calls, "f", b=5))


TYPED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["list"],
    "$defs": {"item": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("family", "taken", "refused"),
    [
        (
            "qwen3_coder",
            [
                {"list": "[1,2]"},
                {"text": "any\nthing </p", "unit": "C", "flag": "true", "list": "[]"},
            ],
            [
                {"text": "a"},
                {"list": '["a"]'},
                {"unit": "K", "list": "[]"},
                {"list": "1", "text": "a"},
            ],
        ),
        (
            "pythonic",
            [{"list": "[1,2]"}, {"list": "[]", "text": '"a"', "unit": '"F"', "flag": "True"}],
            [{"text": '"a"'}, {"list": '["a"]'}, {"list": "[]", "flag": "true"}],
        ),
    ],
)
def test_arguments_that_are_no_json_follow_their_schema(tmp_path, family, taken, refused):
    spec = SPECS[family]
    words = Vocabulary(tmp_path, spec, None)
    use = tool_use([{"function": {"name": "f", "parameters": TYPED}}], "required")
    constraint = calls_constraint(spec, Setup("", "", use.names), use, words.ids)
    for values in taken:
        assert words.takes(constraint, written(spec.calls, "f", **values)), values
    for values in refused:
        assert not words.takes(constraint, written(spec.calls, "f", **values)), values


@pytest.mark.parametrize("family", ["qwen3_coder", "pythonic"])
def test_functions_without_arguments_or_with_none_that_is_needed(tmp_path, family):
    spec = SPECS[family]
    words = Vocabulary(tmp_path, spec, None)
    optional = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    use = tool_use(
        [{"function": {"name": "now"}}, {"function": {"name": "f", "parameters": optional}}],
        "required",
    )
    constraint = calls_constraint(spec, Setup("", "", use.names), use, words.ids)
    form = spec.calls
    bare = form.opening + form.before_name + "{}" + form.before_arguments + form.after
    assert words.takes(constraint, bare.format("now") + form.closing)
    assert words.takes(constraint, bare.format("f") + form.closing)
    for values in ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}):
        assert words.takes(constraint, written(form, "f", **values))
    assert not words.takes(constraint, written(form, "now", a=1))


def test_auto_enforces_nothing_unless_asked_to():
    use = tool_use(tools())
    assert calls_constraint(SPECS["hermes"], Setup(), use, {}) is None
    for family in UNMARKED:  # nothing says where a call begins
        assert calls_constraint(SPECS[family], Setup(), tool_use(tools(strict=True)), {}) is None


def test_a_schema_beyond_the_limits_is_named():
    deep = {"type": "object"}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    use = tool_use([{"function": {"name": "f", "parameters": deep}}], "required")
    with pytest.raises(RequestError, match="nested more than") as caught:
        calls_constraint(SPECS["hermes"], Setup(), use, {})
    assert caught.value.param == "tools[0].function.parameters"


def test_many_large_schemas_are_no_grammar_of_many_rules(tmp_path):
    spec = SPECS["hermes"]
    words = Vocabulary(tmp_path, spec, None)
    properties = {f"p{i}": {"type": "string", "description": "a: (b+)+"} for i in range(40)}
    schema = {"type": "object", "properties": properties}
    many = [{"function": {"name": f"f{i}", "parameters": schema}} for i in range(30)]
    use = tool_use(many, "required")
    constraint = calls_constraint(spec, Setup(), use, {})
    assert constraint.text.count(":") > 1000
    assert words.takes(constraint, written(spec.calls, "f7").replace('"a":5', '"p3": "x"'))


@pytest.mark.parametrize("family", ["hermes", "deepseek_v3", "qwen3_coder"])
def test_what_calls_nothing_follows_a_schema_where_one_is_given(tmp_path, family):
    spec = SPECS[family]
    words = Vocabulary(tmp_path, spec, special=None)
    use = tool_use(tools())
    setup = Setup("", "", use.names)
    schema = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
    constraint = calls_constraint(spec, setup, use, words.ids, schema)
    assert words.takes(constraint, '{"a": 1}')
    assert words.takes(constraint, written(spec.calls, "f"))
    for text in ("text", '{"b": 1}', written(spec.calls, "f", b=5)):
        assert not words.takes(constraint, text)
    anything = Constraint(ConstraintKind.JSON_OBJECT)
    constraint = calls_constraint(spec, setup, use, words.ids, anything)
    assert words.takes(constraint, '{"b": 1}')


@pytest.mark.parametrize("family", sorted(UNMARKED))
def test_calls_without_a_marker_are_not_told_from_a_schema(tmp_path, family):
    spec, use = SPECS[family], tool_use(tools())
    anything = Constraint(ConstraintKind.JSON_OBJECT)
    with pytest.raises(RequestError, match="tools and a schema"):
        calls_constraint(spec, Setup("", "", use.names), use, {}, anything)
