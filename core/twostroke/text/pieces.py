"""The text of each token of a sequence, for people who want to see how a prompt was cut."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from twostroke.text.tokenizer import Tokenizer
from twostroke.types import TokenId


def token_texts(tokenizer: Tokenizer, ids: Sequence[TokenId]) -> list[str]:
    """A text for each of `ids`, control tokens by their own name; put together, the whole text.

    Of a character that takes several tokens the last one has it, those before have "". Bytes that
    form no character become U+FFFD. Takes Python for each token: never on an event loop.
    """
    spellings = {token_id: tokenizer.spelling(token_id) for token_id in set(ids)}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(spellings[token_id]) for token_id in ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts
