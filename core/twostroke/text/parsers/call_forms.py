"""How families of models write calls, after their chat templates: the forms for `families`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twostroke.text.parsers.spec import ArgumentTags, CallForm, CallStyle

HERMES = CallForm(
    begin="<tool_call>",
    end="</tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after="}\n</tool_call>",
    separator="\n",
)
CODER = CallForm(
    begin="<tool_call>",
    end="</tool_call>",
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    after="</function>\n</tool_call>",
    separator="\n",
    style=CallStyle.TAGGED,
    argument=ArgumentTags("<parameter=", ">\n", "\n</parameter>\n"),
)
GLM = CallForm(
    begin="<tool_call>",
    end="</tool_call>",
    before_name="<tool_call>",
    before_arguments="\n",
    after="</tool_call>",
    separator="\n",
    style=CallStyle.TAGGED,
    argument=ArgumentTags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
MINIMAX = CallForm(
    begin="<minimax:tool_call>",
    end="</minimax:tool_call>",
    opening="<minimax:tool_call>\n",
    before_name='<invoke name="',
    before_arguments='">\n',
    after="</invoke>\n",
    separator="",
    closing="</minimax:tool_call>",
    style=CallStyle.TAGGED,
    argument=ArgumentTags('<parameter name="', '">', "</parameter>\n"),
)
SEED = CallForm(
    begin="<seed:tool_call>",
    end="</seed:tool_call>",
    before_name="<seed:tool_call>\n<function=",
    before_arguments=">\n",
    after="</function>\n</seed:tool_call>",
    separator="\n",
    style=CallStyle.TAGGED,
    argument=ArgumentTags("<parameter=", ">", "</parameter>\n"),
)
LLAMA = CallForm(
    begin="<|python_tag|>",
    end="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after="}",
    separator="; ",
    is_bare=True,
)
PYTHON = CallForm(
    begin="",
    end="",
    opening="[",
    before_name="",
    before_arguments="(",
    after=")",
    separator=", ",
    closing="]",
    style=CallStyle.PYTHON,
    is_bare=True,
)
PYTHON_MARKED = replace(PYTHON, begin="<|python_start|>", end="<|python_end|>", is_bare=False)
LLAMA_CONTROL = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
LIST: dict[str, Any] = {
    "before_name": '{"name": "',
    "before_arguments": '", "arguments": ',
    "after": "}",
    "separator": ", ",
    "closing": "]",
}
DEEPSEEK: dict[str, Any] = {
    "begin": "<｜tool▁calls▁begin｜>",
    "end": "<｜tool▁calls▁end｜>",
    "opening": "<｜tool▁calls▁begin｜>",
    "closing": "<｜tool▁calls▁end｜>",
}
DEEPSEEK_CONTROL = (
    *("<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
)
