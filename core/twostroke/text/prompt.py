"""From what a client sends to the token ids that the engine is given."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from twostroke.errors import RequestError
from twostroke.text.messages import Message, check_messages
from twostroke.text.template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer
from twostroke.types import TokenId


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[TokenId]) -> tuple[TokenId, ...]:
    """Token ids of a plain prompt: a text, or ids that are only checked.

    Control tokens written out in a text become control tokens: whoever writes the whole prompt
    writes its structure too. An empty text is the beginning of a sequence.

    Raises:
        RequestError: nothing to begin with, an id outside of the vocabulary, or broken Unicode.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, special=True, add_bos=tokenizer.adds_bos or not prompt)
        if not ids:
            raise RequestError(
                "prompt is empty and this model has no token to begin with; send some text",
                param="prompt",
            )
        return tuple(ids)
    if not prompt:
        raise RequestError("prompt is an empty list; send at least one token id", param="prompt")
    for position, token_id in enumerate(prompt):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise RequestError(
                f"prompt[{position}] is {token_id!r}, not a token id", param=f"prompt[{position}]"
            )
        if not 0 <= token_id < tokenizer.vocab_size:
            raise RequestError(
                f"prompt[{position}] is {token_id}, outside of the vocabulary: ids go from 0 to "
                f"{tokenizer.vocab_size - 1}",
                param=f"prompt[{position}]",
            )
    return tuple(prompt)


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate | None, messages: Sequence[Message]
) -> tuple[TokenId, ...]:
    """Token ids of a conversation through the model's template, ready for an answer.

    Only the template writes control tokens. Where a message holds the text of one, a random
    number stands in for it while the template is rendered, and it is encoded as plain text.

    Raises:
        RequestError: no template, a malformed message, a refusal by the template.
    """
    if template is None:
        raise RequestError(
            "this model has no chat template; send a prompt instead of messages", param="messages"
        )
    checked = check_messages(messages)
    hidden = _Hidden()
    for position, message in enumerate(checked):
        content = message["content"]
        try:
            message["content"] = hidden.hide(tokenizer, content, message["role"])
        except RequestError as error:
            raise RequestError(str(error), param=f"messages[{position}].content") from None
    pieces = hidden.split(template.render_checked(checked))
    ids: list[TokenId] = []
    for position, piece in enumerate(pieces):
        is_plain = position % 2 == 1
        if not piece:
            continue
        if position == 0:
            ids += tokenizer.encode(piece, special=True, add_bos=False)
        elif is_plain:
            ids += _encode_plain(tokenizer, piece)
        else:
            ids += _encode_behind(tokenizer, piece, special=True)
    if not ids:
        raise RequestError("the conversation is empty for this model", param="messages")
    return tuple(ids)


class _Hidden:
    """Control tokens taken out of messages, each replaced by a number nobody can guess.

    Digits survive whatever a template does to a text: trimming, changing case, writing JSON.
    """

    def __init__(self) -> None:
        self._nonce = f"{secrets.randbits(120):037d}"
        self._texts: list[str] = []

    def hide(self, tokenizer: Tokenizer, content: str, role: str) -> str:
        """`content` with control tokens replaced.

        What an assistant has said may hold `<think>` and its like: templates look for them there.
        """
        control = tokenizer.control
        pattern = control.special_pattern if role == "assistant" else control.pattern
        content = pattern.sub(lambda found: self._hide(found[0]), content)
        if tokenizer.control_is_normalised:
            ids = tokenizer.encode(content, special=True, add_bos=False)
            if not control.id_set.isdisjoint(ids):
                return self._hide(self._restore(content))
        return content

    def split(self, rendered: str) -> list[str]:
        """`rendered` as template text and hidden texts, in turn, beginning with template text."""
        pieces = re.split(f"{self._nonce}(\\d{{6}})", rendered)
        pieces[1::2] = [self._texts[int(rank)] for rank in pieces[1::2]]
        return pieces

    def _hide(self, text: str) -> str:
        self._texts.append(text)
        return f"{self._nonce}{len(self._texts) - 1:06d}"

    def _restore(self, content: str) -> str:
        return "".join(self.split(content))


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
