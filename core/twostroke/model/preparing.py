"""What is done with a prompt before the engine is given it, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeGuard, cast

from twostroke.errors import RequestError
from twostroke.life.timeline import Clock
from twostroke.text import (
    ChatTemplate,
    Message,
    Tokenizer,
    encode_prompt,
    encode_rendered,
    render_chat,
)
from twostroke.text.template import ChatEnd
from twostroke.text.template_variables import PARAM
from twostroke.text.tools import ToolUse
from twostroke.timings import Preparation
from twostroke.types import Constraint, TokenId

Prompt = str | Sequence[TokenId] | Sequence[Message]
"""A text, token ids or chat messages."""


def encode_timed(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    prompt: Prompt,
    tools: ToolUse | None = None,
    variables: Mapping[str, Any] = MappingProxyType({}),
    end: ChatEnd = ChatEnd.BEGUN,
    clock: Clock = time.monotonic,
) -> tuple[tuple[TokenId, ...], Preparation]:
    """The token ids of a prompt, and what rendering and tokenising took.

    With `tools` the model is told of the functions in them, `variables` are for its template, and
    `end` says where the text of a conversation ends; all need messages.

    Raises:
        RequestError: the prompt is empty, malformed or outside of the vocabulary.
    """
    began = clock()
    if not is_chat(prompt):
        if tools is not None:
            raise RequestError("tools need messages, not a prompt.", param="tools")
        if variables:
            raise RequestError(f"{PARAM} needs messages, not a prompt.", param=PARAM)
        ids = encode_prompt(tokenizer, cast("str | Sequence[TokenId]", prompt))
        return ids, Preparation(tokenise_ms=(clock() - began) * 1e3)
    told = () if tools is None else tools.told
    rendered = render_chat(tokenizer, template, prompt, told, variables, end)
    template_ms, began = (clock() - began) * 1e3, clock()
    ids = encode_rendered(tokenizer, rendered)
    return ids, Preparation(template_ms=template_ms, tokenise_ms=(clock() - began) * 1e3)


def compile_timed(
    compile_constraint: Callable[[Constraint], object],
    constraint: Constraint | None,
    prepared: Preparation,
    clock: Clock = time.monotonic,
) -> Preparation:
    """`prepared`, with what compiling a constraint took; None compiles nothing.

    Raises:
        RequestError, UnavailableError: as `Engine.compile`.
    """
    if constraint is None:
        return prepared
    began = clock()
    compile_constraint(constraint)
    return replace(prepared, constraint_ms=(clock() - began) * 1e3)


def is_chat(prompt: object) -> TypeGuard[Sequence[Message]]:
    """Whether a prompt is messages."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence):
        return False
    # Of each type once: a prompt may be some hundred thousand ids, and whoever waits for the GIL
    # would feel a turn of Python for each.
    return any(issubclass(kind, Mapping) for kind in set(map(type, prompt)))
