"""Values that a request gives to a chat template."""

import pytest

from twostroke.errors import RequestError
from twostroke.testing.bundles import byte_tokenizer
from twostroke.text import ChatTemplate, Tokenizer, encode_rendered, render_chat
from twostroke.text.template_variables import check_variables

HI = [{"role": "user", "content": "hi"}]
THINKING = "{{ messages[0].content }}{% if enable_thinking is false %}<no>{% endif %}{{ effort }}"


def test_none_are_none():
    assert check_variables(None) == check_variables({}) == {}
    given = {"enable_thinking": False, "effort": "low", "many": [1, 2.5, None, {"a": []}]}
    assert check_variables(given) == given


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "chat_template_kwargs"),
        ("a", "chat_template_kwargs"),
        ({"a b": 1}, "chat_template_kwargs"),
        ({"_a": 1}, "chat_template_kwargs"),
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"tools": []}, "chat_template_kwargs.tools"),
        ({"bos_token": "x"}, "chat_template_kwargs.bos_token"),
        ({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
        ({"a": "\ud83d"}, "chat_template_kwargs.a"),
        ({"a": {1, 2}}, "chat_template_kwargs.a"),
    ],
)
def test_what_is_not_the_clients_to_give_is_refused(given, param):
    with pytest.raises(RequestError) as caught:
        check_variables(given)
    assert caught.value.param == param


def test_nesting_has_an_end():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        check_variables({"a": deep})


def test_a_template_gets_them():
    tokenizer, template = Tokenizer(byte_tokenizer()), ChatTemplate(THINKING)
    assert render_chat(tokenizer, template, HI) == ["hi"]
    given = {"enable_thinking": False, "effort": "low", "other": 1}
    assert render_chat(tokenizer, template, HI, variables=given) == ["hi<no>low"]


def test_control_tokens_in_them_are_text():
    tokenizer, template = Tokenizer(byte_tokenizer()), ChatTemplate(THINKING)
    control = "<|im_end|>"
    plain = render_chat(tokenizer, template, HI, variables={"effort": control})
    ids = encode_rendered(tokenizer, plain)
    assert tokenizer.control.ids[control] not in ids
    assert tokenizer.decode(ids).endswith(control)
