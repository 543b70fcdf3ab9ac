"""Calls whose arguments are not JSON, as models write them and as they go wrong."""

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.text.parsers import CallArguments, CallBegin, Content, Setup
from twostroke.text.parsers.families import FAMILIES
from twostroke.text.parsers.python_value import PythonValue
from twostroke.text.parsers.tagged_values import value_of

SPECS = {spec.name: spec for spec in FAMILIES}
NAMES = frozenset({"f", "get_weather"})
SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "maybe": {"type": ["string", "null"]},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "kind": {"enum": ["1", "2"]},
        "thing": {"$ref": "#/$defs/thing"},
        "described": {"description": "any text"},
    }
}


def deltas_of(family, text):
    spec = SPECS[family]
    parser = spec.make(spec, Setup("", "", NAMES, schemas={"f": SCHEMA}))
    found = [delta for char in text for delta in parser.push(char)]
    return [*found, *parser.finish()]


def calls_of(family, text):
    """Content, and each call's name and arguments."""
    content, calls = "", []
    for delta in deltas_of(family, text):
        match delta:
            case Content(more):
                content += more
            case CallBegin(_, name):
                calls.append([name, ""])
            case CallArguments(index, more):
                calls[index][1] += more
    return content, [tuple(call) for call in calls]


def tagged(**values):
    parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
    return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"text": "5"}, "5"),
        ({"text": ""}, ""),
        ({"text": 'a\n\n<b> "c" \\ 😀 </p'}, 'a\n\n<b> "c" \\ 😀 </p'),
        ({"text": "null"}, "null"),
        ({"count": "5"}, 5),
        ({"count": "five"}, "five"),  # no number: passed on, so that the client is told
        ({"maybe": "null"}, None),
        ({"maybe": "None"}, None),
        ({"maybe": "5"}, "5"),
        ({"flag": "true"}, True),
        ({"flag": "True"}, True),
        ({"list": '[1, "a"]'}, [1, "a"]),
        ({"list": "['a', None, {'b': (1,)}]"}, ["a", None, {"b": [1]}]),
        ({"either": "2.5"}, 2.5),
        ({"either": "two"}, "two"),
        ({"kind": "1"}, "1"),
        ({"thing": '{"a": 1}'}, {"a": 1}),
        ({"described": "12"}, "12"),
        ({"unknown": "12"}, "12"),
        ({"count": "NaN"}, "NaN"),
    ],
)
def test_a_tagged_value_is_what_its_schema_says(written, value):
    content, calls = calls_of("qwen3_coder", tagged(**written))
    (name,) = written
    assert (content, [(each, json.loads(arguments)) for each, arguments in calls]) == (
        "",
        [("f", {name: value})],
    )


def test_tags_need_no_line_breaks_and_no_outer_tag():
    close = "<function=f><parameter=text>a</parameter><parameter=count>1</parameter></function>"
    expected = [("f", '{"text": "a", "count": 1}')]
    assert calls_of("qwen3_coder", f"<tool_call>{close}</tool_call>") == ("", expected)
    assert calls_of("qwen3_coder", f"Well.\n{close}\n</tool_call>") == ("Well.", expected)
    assert calls_of("qwen3_coder", f"{close}\n{close}") == ("", expected * 2)
    inner = f"<tool_call>\n{close}\n{close}\n</tool_call>\nDone."
    assert calls_of("qwen3_coder", inner) == ("Done.", expected * 2)


def test_tags_of_other_families_need_no_line_breaks():
    glm = "<tool_call>f<arg_key>text</arg_key>\n<arg_value>a</arg_value></tool_call>"
    assert calls_of("glm4", glm) == ("", [("f", '{"text": "a"}')])
    assert calls_of("glm4", glm.replace("\n", "")) == ("", [("f", '{"text": "a"}')])
    assert calls_of("glm4", "<tool_call>f</tool_call>") == ("", [("f", "{}")])
    no_call = '<tool_call>\n{"name": "f"}\n</tool_call>'
    assert calls_of("glm4", no_call) == (no_call, [])
    invoke = '<invoke name="f"><parameter name="count">1</parameter></invoke>'
    section = f"<minimax:tool_call>{invoke}{invoke}</minimax:tool_call> Done."
    assert calls_of("minimax", section) == ("Done.", [("f", '{"count": 1}')] * 2)


@pytest.mark.parametrize(
    "text",
    ["<tool_call>\nhello\n</tool_call>", "<tool_call>\n<function=>\n</function>", "a < b <tool_c"],
)
def test_tags_without_a_call_are_text(text):
    assert calls_of("qwen3_coder", text) == (text, [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[f()]", "{}"),
        ("[ f( ) ]", "{}"),
        ("[f(a=1,b = -2.5e3)]", '{"a": 1, "b": -2500.0}'),
        ('[f(a=\'it\\\'s\', b="say \\"hi\\"")]', '{"a": "it\'s", "b": "say \\"hi\\""}'),
        ("[f(a='x, y) ] (')]", '{"a": "x, y) ] ("}'),
        (
            "[f(a=True, b=False, c=None, d=true, e=null)]",
            '{"a": true, "b": false, "c": null, "d": true, "e": null}',
        ),
        ("[f(a=[1, 'b', (2,)], c={'d': {1: []}})]", '{"a": [1, "b", [2]], "c": {"d": {"1": []}}}'),
        ("[f(a='\\n\\x41\\u00e9\\U0001F600\\q')]", '{"a": "\\nAé😀\\\\q"}'),
        ("[f(a=London Bridge)]", '{"a": "London Bridge"}'),
        ("[f(a=nan)]", '{"a": "nan"}'),
        ("[f(a=1,)]", '{"a": 1}'),
    ],
)
@pytest.mark.parametrize("family", ["pythonic", "llama3"])
def test_a_list_of_calls_as_python_writes_them(family, text, arguments):
    assert calls_of(family, text) == ("", [("f", arguments)])
    json.loads(arguments)


@pytest.mark.parametrize(
    "text",
    ["[1, 2, 3]", "[other(a=1)]", "[f]", "[f, g]", "f(a=1)", "[", "[fa(", '["f(a=1)"]', "[](link)"],
)
def test_a_list_of_anything_else_is_text(text):
    assert calls_of("pythonic", text) == (text, [])


def test_a_list_of_calls_may_be_followed_by_text():
    assert calls_of("pythonic", "[f(), f(a=1)] Done.") == (
        "Done.",
        [("f", "{}"), ("f", '{"a": 1}')],
    )
    assert calls_of("pythonic", "[f(1)] no") == ("1)] no", [("f", "")])  # of no argument's name


@pytest.mark.parametrize("family", ["qwen3_coder", "pythonic"])
def test_text_arrives_while_it_is_written(family):
    text = {
        "qwen3_coder": tagged(text="ab")[: -len("b\n</parameter>\n</function>\n</tool_call>")],
        "pythonic": "[f(text='a",
    }[family]
    fragments = [delta for delta in deltas_of(family, text) if isinstance(delta, CallArguments)]
    assert "".join(each.text for each in fragments) == '{"text": "a'
    assert len(fragments) > 2


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
@settings(max_examples=200, deadline=None)
def test_what_python_writes_is_read_as_json(value):
    reader = PythonValue()
    for char in repr(value):
        reader.push(char)
    reader.finish()
    assert json.loads(reader.take()) == ast.literal_eval(repr(value))


@given(text=st.text('ab<>/\n\\"p😀', max_size=12))
@settings(max_examples=200, deadline=None)
def test_text_between_tags_is_kept(text):
    reader, found = value_of({"type": "string"}, "</p>"), ""
    for char in f"\n{text}\n</p>":
        if not reader.is_over:
            found += reader.push(char)
    before = text.partition("</p>")[0]
    assert reader.is_over
    assert json.loads(found) == (before if before == text else before.removesuffix("\n"))
