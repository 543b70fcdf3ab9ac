"""The families that come with twostroke; `backends.builtin_parsers` registers them.

Formats are those that the models' own chat templates write.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from twostroke.text.parsers.call_forms import (
    CODER,
    DEEPSEEK,
    DEEPSEEK_CONTROL,
    GLM,
    HERMES,
    LIST,
    LLAMA,
    LLAMA_CONTROL,
    MINIMAX,
    PYTHON,
    PYTHON_MARKED,
    SEED,
)
from twostroke.text.parsers.harmony import CONTROL, Harmony
from twostroke.text.parsers.sections import Sections
from twostroke.text.parsers.spec import (
    GENERIC,
    CallForm,
    CallStyle,
    ParserSpec,
    SectionParser,
    Setup,
    Tag,
)

Make = Callable[[ParserSpec, Setup], SectionParser]
_API_VERSION = 1
_THINK = Tag("<think>", "</think>")


def _short_id() -> str:
    """Nine letters and digits, which Mistral's templates insist on."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def _family(
    name: str, summary: str, *markers: Sequence[str], make: Make = Sections, **more: Any
) -> ParserSpec:
    return ParserSpec(name, _API_VERSION, summary, markers, make, **more)


FAMILIES = (
    _family(
        "gpt_oss",
        "gpt-oss: channels",
        ["<|channel|>"],
        make=Harmony,
        tags=(Tag("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),),
        calls=CallForm(
            begin="",  # its parser looks for channels
            end="<|call|>",
            before_name="<|channel|>commentary to=functions.",
            before_arguments=" <|constrain|>json<|message|>",
            after="",
            style=CallStyle.NAMED,
        ),
        control=CONTROL,
        priority=60,
    ),
    _family(
        "deepseek_v3",
        "DeepSeek V3 and R1: calls with the arguments in a code block",
        ["<｜tool▁calls▁begin｜>", "```json"],
        tags=(_THINK,),
        calls=CallForm(
            before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            before_arguments="\n```json\n",
            after="\n```<｜tool▁call▁end｜>",
            separator="\n",
            style=CallStyle.NAMED,
            **DEEPSEEK,
        ),
        control=DEEPSEEK_CONTROL,
        priority=51,
    ),
    _family(
        "deepseek_v31",
        "DeepSeek V3.1",
        ["<｜tool▁calls▁begin｜>"],
        tags=(_THINK,),
        calls=CallForm(
            before_name="<｜tool▁call▁begin｜>",
            before_arguments="<｜tool▁sep｜>",
            after="<｜tool▁call▁end｜>",
            separator="",
            style=CallStyle.NAMED,
            **DEEPSEEK,
        ),
        control=DEEPSEEK_CONTROL,
        priority=50,
    ),
    _family(
        "mistral_v11",
        "Mistral from tokenizer v11 on: [TOOL_CALLS]name[ARGS]{…}",
        ["[TOOL_CALLS]", "[ARGS]"],
        tags=(Tag("[THINK]", "[/THINK]"), _THINK),
        calls=CallForm(
            begin="[TOOL_CALLS]",
            end="",
            before_name="[TOOL_CALLS]",
            before_arguments="[ARGS]",
            before_id="[CALL_ID]",
            after="",
            separator="",
            style=CallStyle.NAMED,
        ),
        control=(
            *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
            *("[THINK]", "[/THINK]", "<think>", "</think>"),
        ),
        priority=41,
        new_call_id=_short_id,
    ),
    _family(
        "mistral",
        "Mistral before that: [TOOL_CALLS][{…}]",
        ["[TOOL_CALLS]"],
        calls=CallForm("[TOOL_CALLS]", "", opening="[TOOL_CALLS][", **LIST),
        control=("[TOOL_CALLS]",),
        priority=40,
        new_call_id=_short_id,
    ),
    _family(
        "granite",
        "Granite 3 and Phi 4: <|tool_call|>[{…}]",
        ["<|tool_call|>"],
        tags=(_THINK, Tag("<response>", "</response>", "content")),
        calls=CallForm("<|tool_call|>", "<|/tool_call|>", opening="<|tool_call|>[", **LIST),
        other_calls=(CallForm("<tool_call>", "", opening="<tool_call>[", **LIST),),
        control=("<|tool_call|>", "<|/tool_call|>", "<tool_call>", "<think>", "</think>"),
        priority=30,
    ),
    _family(
        "functools",
        "Phi 4 mini: functools[{…}]",
        ["functools["],
        tags=(_THINK,),
        calls=CallForm("functools", "", opening="functools[", **LIST),
        control=("<think>", "</think>"),
        priority=31,
    ),
    _family(
        "pythonic",
        "Llama 3.2 and 4, told so: a list of calls as Python writes them",
        ["func_name1(param"],
        ["python list", "ipython"],
        tags=(_THINK,),
        calls=PYTHON,
        other_calls=(PYTHON_MARKED, LLAMA),
        control=LLAMA_CONTROL,
        priority=21,
    ),
    _family(
        "llama3",
        "Llama 3 and 4: a bare JSON object",
        ["<|python_tag|>"],
        ["<|python_start|>"],
        ["Environment: ipython", '"parameters"'],
        tags=(_THINK,),
        calls=LLAMA,
        other_calls=(PYTHON, PYTHON_MARKED),
        control=LLAMA_CONTROL,
        priority=20,
    ),
    _family(
        "seed_oss",
        "Seed-OSS: each argument in tags of its own",
        ["<seed:tool_call>"],
        tags=(Tag("<seed:think>", "</seed:think>"),),
        calls=SEED,
        control=(
            *("<seed:tool_call>", "</seed:tool_call>"),
            *("<seed:think>", "</seed:think>"),
        ),
        priority=14,
    ),
    _family(
        "minimax",
        "MiniMax M2: each argument in tags of its own",
        ["<minimax:tool_call>"],
        tags=(_THINK,),
        calls=MINIMAX,
        control=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
        priority=13,
    ),
    _family(
        "glm4",
        "GLM 4.5 and later: names and values of arguments in tags",
        ["<tool_call>", "<arg_key>"],
        tags=(_THINK,),
        calls=GLM,
        control=(
            *("<tool_call>", "</tool_call>", "<think>", "</think>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        priority=12,
    ),
    _family(
        "qwen3_coder",
        "Qwen3-Coder: each argument in tags of its own",
        ["<tool_call>", "<function="],
        tags=(_THINK,),
        calls=CODER,
        other_calls=(replace(CODER, begin="<function=", before_name="<function="),),
        control=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        priority=11,
    ),
    _family(
        "hermes",
        "Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4: <tool_call>{…}</tool_call>",
        ["<tool_call>"],
        tags=(_THINK,),
        calls=HERMES,
        control=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        priority=10,
    ),
    _family(
        GENERIC,
        "every other model: calls as Hermes writes them, reasoning in <think>",
        [""],
        tags=(_THINK,),
        calls=HERMES,
        control=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        priority=-1000,
    ),
)
