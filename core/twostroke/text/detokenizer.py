"""Text of a stream of token ids, piece by piece.

A character may take several tokens: nothing of it shows before it is whole. What a stream leaves
incomplete at its end comes out of `flush` as U+FFFD, as it would in one piece.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from twostroke.text.decoding import Decoding
from twostroke.types import TokenId

_BROKEN = "\ufffd"
_MAX_HELD_TOKENS = 8  # U+FFFD for longer than any character takes is meant


class HasDecoding(Protocol):
    """What a `Detokenizer` asks of a tokenizer."""

    @property
    def decoding(self) -> Decoding:
        """How its ids become text."""
        ...


class Detokenizer:
    """Decodes one sequence as it grows, in constant time a token.

    The pieces put together are what the tokenizer makes of all the ids at once, with one
    difference: where byte tokens of a SentencePiece vocabulary don't form valid UTF-8, it spoils
    the whole run of them, whole characters included. Here only broken bytes become U+FFFD.
    """

    def __init__(
        self,
        tokenizer: HasDecoding,
        context: Sequence[TokenId] = (),
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> None:
        """Starts a stream.

        Args:
            tokenizer: whose ids will come.
            context: ids that stand before the stream (the prompt), so that a space which belongs
                between the two is kept. Nothing of them is emitted.
            shown_ids: control tokens that are written out although they show nowhere else.
        """
        decoding = tokenizer.decoding
        self._shown = {token_id: decoding.spelt_out(token_id) for token_id in shown_ids}
        self._stream: _ByteStream | _WindowStream = (
            _ByteStream(decoding) if decoding.is_byte_level else _WindowStream(decoding, context)
        )

    def push(self, token_id: TokenId) -> str:
        """Takes the next id; returns the text that is now certain, maybe "". Mutates self."""
        shown = self._shown.get(token_id)
        if shown is not None:
            return self._stream.flush() + shown
        return self._stream.push(token_id)

    def flush(self) -> str:
        """Ends the stream and returns what was held back. Mutates self."""
        return self._stream.flush()


class _ByteStream:
    """Byte-level vocabularies: tokens are bytes, and bytes are UTF-8."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: TokenId) -> str:
        return self._utf8.decode(self._decoding.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _WindowStream:
    """All other vocabularies: the text of new ids is what they add behind the ids before them."""

    def __init__(self, decoding: Decoding, context: Sequence[TokenId]) -> None:
        self._decoding = decoding
        self._before = _last_shown(decoding, context)
        self._held: list[TokenId] = []  # decoded, but ends in U+FFFD
        self._run: list[TokenId] = []  # byte tokens of a character that is not whole
        self._run_bytes = bytearray()

    def push(self, token_id: TokenId) -> str:
        if self._decoding.skips(token_id):
            return ""
        byte = self._decoding.single_byte(token_id)
        if byte is None:
            return self._break_run() + self._advance([token_id])
        return self._push_byte(token_id, byte)

    def flush(self) -> str:
        text = self._break_run()
        return text + self._advance([], is_last=True) if self._held else text

    def _push_byte(self, token_id: TokenId, byte: int) -> str:
        text = ""
        while True:
            self._run.append(token_id)
            self._run_bytes.append(byte)
            try:
                self._run_bytes.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    return text
                is_new_byte_broken = len(self._run) == 1
                if not is_new_byte_broken:
                    self._run.pop()
                    self._run_bytes.pop()
                text += self._break_run()
                if is_new_byte_broken:
                    return text
                continue  # the byte that broke the character may begin another
            ids, self._run = self._run, []
            self._run_bytes.clear()
            return text + self._advance(ids)

    def _break_run(self) -> str:
        """Gives up on a character: one U+FFFD a byte, as ByteFallback decodes broken runs."""
        if not self._run:
            return ""
        text = self._advance([], is_last=True) if self._held else ""
        text += _BROKEN * len(self._run)
        self._run = []
        self._run_bytes.clear()
        self._before = self._before or self._decoding.neutral()
        return text

    def _advance(self, ids: list[TokenId], *, is_last: bool = False) -> str:
        new = self._held + ids
        before = self._decoding.decode(self._before) if self._before else ""
        both = self._decoding.decode(self._before + new)
        # A decoder that rewrites what it has emitted cannot be followed: take the new ids alone.
        text = both[len(before) :] if both.startswith(before) else self._decoding.decode(new)
        if text.endswith(_BROKEN) and not is_last and len(new) < _MAX_HELD_TOKENS:
            self._held = new
            return ""
        self._before, self._held = new, []
        return text


def _last_shown(decoding: Decoding, context: Sequence[TokenId]) -> list[TokenId]:
    """The last id of `context` that shows as whole text; none right behind a special token,
    where encoders begin a text anew.
    """
    if context and decoding.skips(context[-1]):
        return []
    for token_id in reversed(context):
        if not decoding.skips(token_id) and decoding.single_byte(token_id) is None:
            return [token_id]
    return []
