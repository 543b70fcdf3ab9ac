"""From what a client sends to the token ids that the engine is given."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, SupportsIndex

from twostroke.errors import RequestError
from twostroke.text.hidden import HiddenTokens
from twostroke.text.messages import Message, check_messages
from twostroke.text.template import ChatEnd, ChatTemplate
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.tool_messages import in_plain_roles
from twostroke.text.tools import Tool
from twostroke.text.valid_unicode import check_unicode
from twostroke.types import TokenId


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[TokenId]) -> tuple[TokenId, ...]:
    """Token ids of a plain prompt: a text, or ids that are only checked.

    Control tokens written out in a text become control tokens: whoever writes the whole prompt
    writes its structure too. An empty text is the beginning of a sequence.

    Raises:
        RequestError: nothing to begin with, an id outside of the vocabulary, or broken Unicode.
    """
    if isinstance(prompt, str):
        check_unicode(prompt, "prompt")
        ids = tokenizer.encode(prompt, special=True, add_bos=tokenizer.adds_bos or not prompt)
        if not ids:
            raise RequestError(
                "prompt is empty and this model has no token to begin with; send some text",
                param="prompt",
            )
        return tuple(ids)
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise RequestError("prompt must be a string or a list of token ids", param="prompt")
    if not prompt:
        raise RequestError("prompt is an empty list; send at least one token id", param="prompt")
    return _checked_ids(tokenizer, prompt)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
) -> tuple[TokenId, ...]:
    """Token ids of a conversation through the model's template, ready for an answer.

    Raises:
        RequestError: no template, a malformed message, a refusal by the template.
    """
    return encode_rendered(tokenizer, render_chat(tokenizer, template, messages, tools))


def render_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    variables: Mapping[str, Any] = MappingProxyType({}),
    end: ChatEnd = ChatEnd.BEGUN,
) -> list[str]:
    """The text of a conversation, cut where it stops and begins to be the template's own.

    Only the template writes control tokens. Where a message holds the text of one, a random
    number stands in for it while the template is rendered; those texts are the pieces with an odd
    index, which `encode_rendered` takes for plain text. `tools` are functions that the model is
    told of: by its template, or in a system message where the template has no form for them.
    `variables` are values that the template may ask for (`check_variables`); `end` says where the
    text ends.

    Raises:
        RequestError: no template, a malformed message, a refusal by the template.
    """
    if template is None:
        raise RequestError(
            "this model has no chat template; send a prompt instead of messages", param="messages"
        )
    hidden = HiddenTokens(tokenizer)
    try:
        checked = [_hidden(message, hidden) for message in check_messages(messages)]
        told = [
            replace(
                tool,
                description=hidden.hide(tool.description, "tool"),
                parameters=hidden.hide_all(tool.parameters, "tool"),
            )
            for tool in tools
        ]
    except RecursionError:
        raise RequestError("tools are nested too deeply", param="tools") from None
    given = {name: hidden.hide_all(value, "tool") for name, value in variables.items()}
    if template.takes_tools:
        offered = [tool.as_template() for tool in told] or None
        return hidden.split(template.render_checked(checked, offered, given, end=end))
    plain = in_plain_roles(checked, told)
    return hidden.split(template.render_checked(plain, None, given, end=end))


def encode_continuation(tokenizer: Tokenizer, text: str) -> tuple[TokenId, ...]:
    """Token ids of plain text as it goes on behind other text."""
    return tuple(_encode_behind(tokenizer, text, special=False))


def encode_rendered(tokenizer: Tokenizer, pieces: Sequence[str]) -> tuple[TokenId, ...]:
    """Token ids of what `render_chat` answers.

    Raises:
        RequestError: there is nothing in it, or a message that cannot be written as plain text.
    """
    ids = tokenizer.encode(pieces[0], special=True, add_bos=False)
    for position, piece in enumerate(pieces[1:], start=1):
        if position % 2:
            ids += _encode_plain(tokenizer, piece)
        elif piece:
            ids += _encode_behind(tokenizer, piece, special=True)
    if not ids:
        raise RequestError("the conversation is empty for this model", param="messages")
    return tuple(ids)


def _hidden(message: Mapping[str, Any], hidden: HiddenTokens) -> dict[str, Any]:
    role = message["role"]
    # What an assistant has said may hold markers that templates look for; its calls may not.
    spoken = {key: hidden.hide(message[key], role) for key in message if key != "tool_calls"}
    if "tool_calls" in message:
        spoken["tool_calls"] = hidden.hide_all(message["tool_calls"], "tool")
    return spoken


def _checked_ids(tokenizer: Tokenizer, ids: Sequence[Any]) -> tuple[TokenId, ...]:
    if set(map(type, ids)) == {int} and 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
        return tuple(ids)  # no turn of Python for each of maybe some hundred thousand ids
    return tuple(_checked(tokenizer, item, f"prompt[{i}]") for i, item in enumerate(ids))


def _checked(tokenizer: Tokenizer, token_id: object, param: str) -> TokenId:
    if isinstance(token_id, bool) or not isinstance(token_id, SupportsIndex):
        shown = repr(token_id)
        shown = shown if len(shown) <= 40 else shown[:40] + "…"
        raise RequestError(f"{param} is {shown}, not a token id", param=param)
    number = operator.index(token_id)
    if not 0 <= number < tokenizer.vocab_size:
        raise RequestError(
            f"{param} is outside of the vocabulary: ids go from 0 to {tokenizer.vocab_size - 1}",
            param=param,
        )
    return number


def _encode_plain(tokenizer: Tokenizer, text: str) -> list[TokenId]:
    """Ids of `text` with no control token among them."""
    ids = _encode_behind(tokenizer, text, special=False)
    if tokenizer.control.id_set.isdisjoint(ids):
        return ids
    # A vocabulary may hold a control token as an ordinary piece too; single letters avoid it.
    ids = [i for char in text for i in _encode_behind(tokenizer, char, special=False)]
    if tokenizer.control.id_set.isdisjoint(ids):
        return ids
    raise RequestError(
        f"{text!r} is a control token of this model and cannot be written as text",
        param="messages",
    )


def _encode_behind(tokenizer: Tokenizer, text: str, *, special: bool) -> list[TokenId]:
    """Ids of `text` as it continues another text.

    SentencePiece vocabularies put a space before whatever they encode; behind a line break they
    don't, and the line break's own ids are easily taken away again.
    """
    line = tokenizer.encode("\n", special=special, add_bos=False)
    both = tokenizer.encode("\n" + text, special=special, add_bos=False)
    if line and both[: len(line)] == line:
        return both[len(line) :]
    return tokenizer.encode(text, special=special, add_bos=False)
