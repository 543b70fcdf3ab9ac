"""Each family's answers, cut at every place: what is read never depends on the pieces."""

import json
import random

import pytest

from twostroke.model import ReadAnswer
from twostroke.text.parsers import CallStyle, Setup
from twostroke.text.parsers.families import FAMILIES

SPECS = {spec.name: spec for spec in FAMILIES}
NAMES = frozenset({"add", "now"})


SCHEMAS = {"add": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}}


def read(family, pieces, *, names=NAMES, template="", tail="", max_calls=None, picky=False):
    spec = SPECS[family]
    parser = spec.make(spec, Setup(template, tail, names, picky, SCHEMAS, max_calls))
    answer = ReadAnswer()
    for piece in pieces:
        answer.add(parser.push(piece))
    answer.add(parser.finish())
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.text, answer.reasoning, calls


def read_all_ways(family, text, **options):
    whole = read(family, [text], **options)
    assert read(family, list(text), **options) == whole
    for cut in range(1, len(text)):
        assert read(family, [text[:cut], text[cut:]], **options) == whole
    for seed in range(20):
        rng, pieces, rest = random.Random(seed), [], text
        while rest:
            cut = rng.randint(1, 7)
            pieces.append(rest[:cut])
            rest = rest[cut:]
        assert read(family, pieces, **options) == whole
    return whole


TWO = [("add", '{"a": 1, "s": "}</tool_call>"}'), ("now", "{}")]
HERMES = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "s": "}</tool_call>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ANSWERS = {
    "hermes": f"Let me see.\n{HERMES}",
    "generic": f"Let me see.\n{HERMES}",
    "granite": 'Let me see.<|tool_call|>[{"name": "add", "arguments": '
    '{"a": 1, "s": "}</tool_call>"}}, {"name": "now", "arguments": {}}]',
    "mistral": 'Let me see.[TOOL_CALLS][{"name": "add", "arguments": '
    '{"a": 1, "s": "}</tool_call>"}}, {"name": "now", "arguments": {}}]',
    "mistral_v11": 'Let me see.[TOOL_CALLS]add[ARGS]{"a": 1, "s": "}</tool_call>"}'
    "[TOOL_CALLS]now[ARGS]{}",
    "functools": 'Let me see.functools[{"name": "add", "arguments": '
    '{"a": 1, "s": "}</tool_call>"}}, {"name": "now", "arguments": {}}]',
    "qwen3_coder": "Let me see.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
    "<parameter=s>\n}</tool_call>\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm4": "Let me see.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>s</arg_key>\n<arg_value>}</tool_call></arg_value>\n</tool_call>\n"
    "<tool_call>now\n</tool_call>",
    "minimax": 'Let me see.\n<minimax:tool_call>\n<invoke name="add">\n'
    '<parameter name="a">1</parameter>\n<parameter name="s">}</tool_call></parameter>\n'
    '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "seed_oss": "Let me see.\n<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n"
    "<parameter=s>}</tool_call></parameter>\n</function>\n</seed:tool_call>\n"
    "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    "pythonic": "Let me see.<|python_start|>[add(a=1, s='}</tool_call>'), now()]<|python_end|>",
    "llama3": 'Let me see.<|python_tag|>{"name": "add", "parameters": '
    '{"a": 1, "s": "}</tool_call>"}}; {"name": "now", "parameters": {}}',
    "deepseek_v3": "Let me see.<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1, "s": "}</tool_call>"}\n```'
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "Let me see.<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "s": "}</tool_call>"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gpt_oss": "<|channel|>final<|message|>Let me see.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "s": '
    '"}</tool_call>"}<|call|><|start|>assistant to=functions.now<|channel|>commentary json'
    "<|message|>{}<|call|>",
}


def test_every_family_has_a_test():
    assert ANSWERS.keys() == SPECS.keys()


@pytest.mark.parametrize("family", SPECS)
def test_two_calls_behind_a_text(family):
    assert read_all_ways(family, ANSWERS[family]) == ("Let me see.", "", TWO)


@pytest.mark.parametrize("family", [name for name in SPECS if name != "gpt_oss"])
def test_without_functions_nothing_is_taken_away(family):
    text = ANSWERS[family]
    assert read_all_ways(family, text, names=frozenset()) == (text, "", [])


@pytest.mark.parametrize("family", SPECS)
def test_the_arguments_of_a_call_that_is_cut_off_stay_as_they_are(family):
    cuts = {"qwen3_coder": "<parameter=s", "pythonic": "s='}", "glm4": "<arg_key>s"}
    cuts["seed_oss"] = "<parameter=s"
    cuts["minimax"] = '<parameter name="s'
    text = ANSWERS[family].split(cuts.get(family, '"s"'))[0]
    _, _, calls = read_all_ways(family, text)
    assert [(name, arguments.rstrip(", ")) for name, arguments in calls] == [("add", '{"a": 1')]


@pytest.mark.parametrize("family", SPECS)
def test_calls_beyond_those_that_are_wanted_are_dropped(family):
    assert read_all_ways(family, ANSWERS[family], max_calls=1) == ("Let me see.", "", TWO[:1])


@pytest.mark.parametrize("family", ["hermes", "generic", "granite", "llama3", "deepseek_v3"])
def test_reasoning(family):
    expected = ("4", "2 + 2 < 5", [])
    assert read_all_ways(family, "<think>\n2 + 2 < 5\n</think>\n\n4") == expected
    assert read_all_ways(family, "2 + 2 < 5\n</think>\n\n4", tail="\n<think>\n") == expected
    assert read_all_ways(family, "4", tail="<think>\n\n</think>\n\n") == ("4", "", [])


@pytest.mark.parametrize("family", SPECS)
def test_a_function_that_was_not_offered_is_passed_on_unless_calls_are_restricted(family):
    names = frozenset({"now"})
    restricted = read_all_ways(family, ANSWERS[family], names=names, picky=True)
    assert all(name == "now" for name, _ in restricted[2])
    assert "add" in restricted[0] or family == "gpt_oss"  # whose headers never show
    if SPECS[family].calls.style is not CallStyle.PYTHON:
        assert read_all_ways(family, ANSWERS[family], names=names)[2] == TWO


def test_an_id_between_a_name_and_its_arguments_is_passed_over():
    text = '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]a[ARGS]{}'
    assert read_all_ways("mistral_v11", text) == ("", "", [("add", '{"a": 1}'), ("now", "{}")])


def test_granite_may_write_its_marker_as_text():
    text = '<tool_call>[{"name": "add", "arguments": {"a": 1}}]'
    assert read_all_ways("granite", text) == ("", "", [("add", '{"a": 1}')])


def test_reasoning_without_an_end_stays_reasoning():
    assert read_all_ways("hermes", "<think>so </th") == ("", "so </th", [])


def test_a_template_without_reasoning_leaves_its_markers_alone():
    text = "<think>hm</think>4"
    assert read_all_ways("hermes", text, template="<tool_call>") == (text, "", [])


def test_a_call_behind_reasoning():
    text = f"<think>a call?</think>\n{HERMES}\nDone."
    assert read_all_ways("hermes", text) == ("Done.", "a call?", TWO)


def test_channels():
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4"
        "<|return|>"
    )
    assert read_all_ways("gpt_oss", text) == ("4", "hm", [])
    assert read_all_ways("gpt_oss", "just text") == ("just text", "", [])


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>",
        "<tool_call>\nadd(1)\n</tool_call>",
        "<tool_call>\n{'name': 'add'}\n</tool_call>",
        '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": ""}\n</tool_call>',
        "<tool_call>\n</tool_call>",
        '<tool_call>{"na',
    ],
)
def test_what_is_no_call_is_text(broken):
    assert read_all_ways("hermes", f"So: {broken}") == (f"So: {broken}", "", [])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "add", "arguments": {"a": }}', '{"a": }'),  # no JSON, so the client is told
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        (
            '{"id": 7, "name": "add", "arguments": {"a": [1, {"b": "\\""}]}}',
            '{"a": [1, {"b": "\\""}]}',
        ),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": null}', "null"),
    ],
)
def test_how_models_write_calls(written, arguments):
    text = f"<tool_call>{written}</tool_call>"
    assert read_all_ways("hermes", text) == ("", "", [("add", arguments)])


def test_a_call_without_an_end_is_followed_by_text():
    text = '<tool_call>{"name": "now", "arguments": {}} and so on'
    assert read_all_ways("hermes", text) == ("and so on", "", [("now", "{}")])


def test_a_bare_object_is_a_call_where_it_names_a_function():
    call = '{"name": "add", "parameters": {"a": 1}}'
    assert read_all_ways("llama3", call) == ("", "", [("add", '{"a": 1}')])
    for other in ('{"name": "Ada", "age": 3}', '{"answer": 4}', "{x}", "{"):
        assert read_all_ways("llama3", other) == (other, "", [])


def test_a_call_streams_while_it_is_written():
    spec = SPECS["hermes"]
    parser = spec.make(spec, Setup("", "", NAMES))
    assert parser.push('<tool_call>\n{"name": "add", "arguments": {"a"')
    (fragment,) = parser.push(": 1")
    assert fragment.text == ": 1"


def test_white_space_of_a_plain_answer_is_kept():
    assert read_all_ways("hermes", "  a\n\nb \n") == ("  a\n\nb \n", "", [])


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<|python_tag|>", "llama3"),
        ("[TOOL_CALLS]", "mistral"),
        ("[TOOL_CALLS] [ARGS]", "mistral_v11"),
        ("<|channel|>", "gpt_oss"),
        ("<｜tool▁calls▁begin｜>```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
        ("<|tool_call|>", "granite"),
        ("functools[{", "functools"),
        ("<|python_start|>", "llama3"),
        ("Respond with [func_name1(params_name1=params_value1)]. <|python_tag|>", "pythonic"),
        ("Environment: ipython, answer with a python list of the calls", "pythonic"),
        ("<tool_call>\n<function=f>", "qwen3_coder"),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key>", "glm4"),
        ("<minimax:tool_call> <tool_call>", "minimax"),
        ("<seed:tool_call>\n<function=f>", "seed_oss"),
        ("{{ messages }}", "generic"),
    ],
)
def test_families_are_known_by_their_templates(template, family):
    fitting = [spec for spec in FAMILIES if spec.fits(template)]
    assert max(fitting, key=lambda spec: spec.priority).name == family


def written_arguments(form, arguments):
    if form.style is CallStyle.PYTHON:
        return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    if form.style is CallStyle.TAGGED:
        tags = form.argument
        return "".join(
            tags.before_name + name + tags.before_value + json.dumps(value) + tags.after
            for name, value in arguments.items()
        )
    return json.dumps(arguments)


def test_the_form_of_a_call_is_what_the_parser_reads():
    for name, spec in SPECS.items():
        form = spec.calls
        text = form.opening + form.before_name + "add" + form.before_arguments
        text += written_arguments(form, {"a": 1}) + form.after + form.closing
        assert read_all_ways(name, text) == ("", "", [("add", '{"a": 1}')])
