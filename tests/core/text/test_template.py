from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.bundle import open_bundle
from twostroke.errors import BundleError, RequestError
from twostroke.testing import make_echo_bundle
from twostroke.text import ChatTemplate, Tokenizer

USER = [{"role": "user", "content": "h<i>"}]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(USER)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>h<i>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "h<i>"}]'),
        ("{{ {'a': 'é'} | tojson(indent=1) }}", '{\n "a": "é"\n}'),
        ("{% for m in messages %}\n  {{ loop.index }}/{{ loop.length }}\n{% endfor %}", "  1/1\n"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in range(3) %}{{ i }}{{ ',' if not loop.last }}{% endfor %}", "0,1,2"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none }}{% endfor %}", "a1None"),
        ("{% for x in nothing %}{{ x }}{% else %}empty{% endfor %}", "empty"),
        ("{% generation %}{{ 'kept' }}{% endgeneration %}", "kept"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}"
         "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') + m('b') }}", "<a><b>"),
        ("{{ 'a-b'.split('-') | join('+') }}{{ '%s!' % 'x' }}", "a+bx!"),
        ("{{ 'ab'.replace('a', 'c') }}{{ '-'.join(['x', 'y']) }}", "cbx-y"),
        ("{{ messages[0]['content'].upper() | trim | length * 2 }}", "8"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)  # fmt: skip
def test_renders(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 300000000 }}",
        "{{ 'x' | center(300000000) }}",
        "{{ 'x'.ljust(300000000) }}",
        "{{ '%300000000d' % 1 }}",
        "{{ '%*d' % (300000000, 1) }}",
        "{{ '%300000000d' | format(1) }}",
        "{{ '{:300000000}'.format(1) }}",
        "{{ 9 ** 999999999 }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}"
        "{% set n.x = n.x | replace('a', 'abab') %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(40) %}"
        "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(40) %}"
        "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{{ range(99999) | map('center', 9999) | join }}",
        "{{ ('x' * 9999) | list | join('y' * 9999) }}",
        "{{ 'y'.join(['x' * 999999, 'x' * 999999]) }}",
        "{{ ('\n' * 9999) | indent(9999) }}",
        "{% for i in range(99999) %}{{ 'x' * 999999 }}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{{ 'x' * 999999 }}{% endfor %}{% endset %}",
        "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
        "{% macro m() %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endmacro %}"
        "{{ m() }}",
    ],
)
def test_what_would_never_end_or_fit_is_stopped(source: str) -> None:
    with pytest.raises(RequestError, match="chat template was stopped: it ") as caught:
        render(source)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 200


def test_calls_count_as_loops_do() -> None:
    bomb = (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}"
    )
    with pytest.raises(RequestError, match="was stopped"):
        render(bomb)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ messages[0].copy.__self__.x }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ lipsum(9) }}", "undefined"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ 1 // 0 }}", "by zero"),
    ],
)
def test_a_refusal_is_one_sentence(source: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        render(source)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% nonsense %}", "{{ 'x' | nofilter }}"])
def test_what_is_no_template_is_refused_when_opened(source: str) -> None:
    with pytest.raises(BundleError, match=r"chat_template\.jinja is not a template"):
        ChatTemplate(source)


def test_compiling_is_limited_too() -> None:
    with pytest.raises((BundleError, RequestError), match=r"characters|width"):
        render("{{ 'x' | center(300000000) ~ 'y' }}")


def test_opens_a_bundle_with_its_tokens(tmp_path: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}"
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo", chat_template=source))
    template = ChatTemplate.open(bundle, Tokenizer.open(bundle))
    assert template is not None
    assert template.render(USER) == "|<|im_end|>|"


def test_tokens_of_the_configuration_come_first(tmp_path: Path) -> None:
    from twostroke.bundle import seal

    folder = make_echo_bundle(tmp_path / "echo", chat_template="{{ bos_token }}{{ eos_token }}")
    config = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    seal(folder, open_bundle(folder).manifest)
    bundle = open_bundle(folder)
    template = ChatTemplate.open(bundle, Tokenizer.open(bundle))
    assert template is not None
    assert template.render(USER) == "<b><e>"


def test_a_bundle_without_a_template_has_none(tmp_path: Path) -> None:
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo", chat_template=None))
    assert ChatTemplate.open(bundle) is None


def test_a_broken_template_names_its_bundle(tmp_path: Path) -> None:
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo", chat_template="{% for %}"))
    with pytest.raises(BundleError, match=str(tmp_path)):
        ChatTemplate.open(bundle)
