"""`/tokenize`, `/detokenize` and `/apply-template`: text, tokens and back, without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from twostroke.errors import RequestError
from twostroke.server.body import read_json
from twostroke.server.fields import Int, Messages, check_shape
from twostroke.server.model_for import model_for
from twostroke.server.replies import json_reply
from twostroke.server.text_threads import threads_for, threads_of_length
from twostroke.text import Tokenizer, render_chat
from twostroke.text.template_variables import check_variables
from twostroke.text.tools import tool_use
from twostroke.types import TokenId


class _TextBody(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    model: str | None = None
    """which one; may be left out where one is served"""


class TokenizeBody(_TextBody):
    """The body of `/tokenize`."""

    content: str
    """the text"""
    add_special: bool = False
    """whether the token that begins a sequence comes first"""
    parse_special: bool = True
    """whether control tokens that are written out become control tokens"""
    with_pieces: bool = False
    """whether each token comes with its text, or its bytes where that is no text"""


class DetokenizeBody(_TextBody):
    """The body of `/detokenize`."""

    tokens: list[Int]
    """token ids"""


class TemplateBody(_TextBody):
    """The body of `/apply-template`."""

    messages: Messages
    """a conversation"""
    tools: Any = None
    """functions that may be called"""
    chat_template_kwargs: Any = None
    """values that the model's chat template asks for"""


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Answers `POST /tokenize`."""
    body = check_shape(TokenizeBody, await read_json(request))
    tokenizer = (await model_for(request, body.model)).tokenizer

    def encode() -> list[Any]:
        ids = tokenizer.encode(body.content, special=body.parse_special, add_bos=body.add_special)
        return [_piece(tokenizer, each) for each in ids] if body.with_pieces else list(ids)

    loop = asyncio.get_running_loop()
    tokens = await loop.run_in_executor(threads_for(body.content), encode)
    return json_reply({"tokens": tokens})


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Answers `POST /detokenize`."""
    body = check_shape(DetokenizeBody, await read_json(request))
    tokenizer = (await model_for(request, body.model)).tokenizer
    loop = asyncio.get_running_loop()
    threads = threads_of_length(len(body.tokens))
    text = await loop.run_in_executor(threads, _text, tokenizer, body.tokens)
    return json_reply({"content": text})


async def apply_template(request: web.Request) -> web.StreamResponse:
    """Answers `POST /apply-template`."""
    body = check_shape(TemplateBody, await read_json(request))
    variables = check_variables(body.chat_template_kwargs)
    tools = tool_use(body.tools, None, None)
    model = await model_for(request, body.model)

    def render() -> str:
        told = () if tools is None else tools.told
        return "".join(render_chat(model.tokenizer, model.template, body.messages, told, variables))

    loop = asyncio.get_running_loop()
    return json_reply({"prompt": await loop.run_in_executor(threads_for(body.messages), render)})


def _piece(tokenizer: Tokenizer, token_id: TokenId) -> dict[str, Any]:
    spelt = tokenizer.spelling(token_id)
    try:
        return {"id": token_id, "piece": spelt.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(spelt)}


def _text(tokenizer: Tokenizer, ids: Sequence[TokenId]) -> str:
    """The text of ids, control tokens written out.

    Raises:
        RequestError: an id outside of the vocabulary.
    """
    for number, token_id in enumerate(ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise RequestError(
                f"tokens[{number}] is {token_id}, which is outside of the vocabulary "
                f"(0 to {tokenizer.vocab_size - 1}).",
                param=f"tokens[{number}]",
            )
    special = tokenizer.decoding.special_ids
    pieces, plain = [], list[TokenId]()
    for token_id in ids:
        if token_id not in special:
            plain.append(token_id)
            continue
        pieces += [tokenizer.decode(plain), tokenizer.token(token_id) or ""]
        plain = []
    return "".join([*pieces, tokenizer.decode(plain)])
