"""Log-probabilities in OpenAI's two shapes: a list of objects (chat) and parallel arrays (legacy).

A token may be a part of a character. Chat says its bytes beside a text that may hold U+FFFD; the
legacy shape writes such a token as `bytes:\\xf0\\x9f`, as OpenAI does. A probability of zero is
-9999, because JSON has no infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.text import Detokenizer, Tokenizer
from twostroke.types import TokenId, TokenLogprob

_LOWEST = -9999.0


def chat_logprobs(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": [_chat_entry(tokenizer, each) for each in found], "refusal": None}


def legacy_logprobs(
    tokenizer: Tokenizer,
    ids: Sequence[TokenId],
    found: Sequence[TokenLogprob | None],
    offsets: Sequence[int],
) -> dict[str, Any]:
    """The `logprobs` of a legacy choice: arrays with one entry for each of `ids`.

    An entry of `found` is None for a token that nothing predicts; `offsets` say where in the
    choice's text each token begins, in characters.
    """
    return {
        "tokens": [_legacy_text(tokenizer, token_id) for token_id in ids],
        "token_logprobs": [None if each is None else _finite(each.logprob) for each in found],
        "top_logprobs": [None if each is None else _legacy_top(tokenizer, each) for each in found],
        "text_offset": list(offsets),
    }


def offsets_of(tokenizer: Tokenizer, ids: Sequence[TokenId]) -> list[int]:
    """Where each of `ids` begins in their text; a part of a character begins where it does."""
    detokenizer, length, offsets = Detokenizer(tokenizer), 0, []
    for token_id in ids:
        offsets.append(length)
        length += len(detokenizer.push(token_id))
    return offsets


def _chat_entry(tokenizer: Tokenizer, found: TokenLogprob) -> dict[str, Any]:
    top = [_chat_token(tokenizer, *each) for each in found.top]
    return {**_chat_token(tokenizer, found.token_id, found.logprob), "top_logprobs": top}


def _chat_token(tokenizer: Tokenizer, token_id: TokenId, logprob: float) -> dict[str, Any]:
    spelt = tokenizer.spelling(token_id)
    text = spelt.decode("utf-8", "replace")
    return {"token": text, "logprob": _finite(logprob), "bytes": list(spelt)}


def _legacy_top(tokenizer: Tokenizer, found: TokenLogprob) -> dict[str, float] | None:
    if not found.top:
        return None
    best: dict[str, float] = {}
    for token_id, logprob in found.top:  # of two that are written alike, the likelier one stays
        best.setdefault(_legacy_text(tokenizer, token_id), _finite(logprob))
    return best


def _legacy_text(tokenizer: Tokenizer, token_id: TokenId) -> str:
    spelt = tokenizer.spelling(token_id)
    try:
        return spelt.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
