"""How ids become text: what a tokenizer's decoder does, known token by token.

Two kinds cover the models of today. *Byte-level* vocabularies (GPT-2 and its heirs) spell every
token in bytes, so a token's bytes depend on nothing else. All others are decoded in windows; of
those, SentencePiece vocabularies may spell a character in byte tokens `<0x..>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import tokenizers

from twostroke.types import TokenId

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoding:
    """The decoder of one tokenizer. Safe in any thread: what it caches never changes."""

    def __init__(self, core: tokenizers.Tokenizer, special_ids: set[TokenId]) -> None:
        self._core = core
        self.special_ids = frozenset(special_ids)
        kinds = set(_decoder_kinds(core))
        self.is_byte_level = "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}
        self._has_byte_tokens = "ByteFallback" in kinds
        self._bytes: dict[TokenId, bytes] = {}
        self._neutral: list[TokenId] | None = None

    def decode(self, ids: Sequence[TokenId]) -> str:
        """Text of `ids` as the tokenizer itself decodes them, special tokens left out."""
        return str(self._core.decode(list(ids), skip_special_tokens=True))

    def skips(self, token_id: TokenId) -> bool:
        """Whether a token never shows: special ones, and ids beyond the vocabulary."""
        return token_id in self.special_ids or self._core.id_to_token(token_id) is None

    def spelt_out(self, token_id: TokenId) -> str:
        """A token as the vocabulary writes it; "" for an unknown id."""
        return str(self._core.id_to_token(token_id) or "")

    def token_bytes(self, token_id: TokenId) -> bytes:
        """Bytes of a token of a byte-level vocabulary; b"" for one that never shows."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self._core.id_to_token(token_id)
            found = b"" if token is None or token_id in self.special_ids else _spell(token)
            self._bytes[token_id] = found
        return found

    def single_byte(self, token_id: TokenId) -> int | None:
        """The byte that a SentencePiece byte token stands for; None for any other token."""
        if not self._has_byte_tokens:
            return None
        match = _BYTE_TOKEN.fullmatch(self._core.id_to_token(token_id) or "")
        return None if match is None else int(match[1], 16)

    def piece_bytes(self, token_id: TokenId) -> bytes:
        """Bytes of a token in the middle of a text; b"" for one that never shows."""
        if self.is_byte_level or self.skips(token_id):
            return self.token_bytes(token_id) if self.is_byte_level else b""
        byte = self.single_byte(token_id)
        if byte is not None:
            return bytes([byte])
        before = self.neutral()
        whole = self.decode([*before, token_id])
        return whole.removeprefix(self.decode(before) if before else "").encode()

    def neutral(self) -> list[TokenId]:
        """An id (in a list, empty where none is found) to decode others behind: a plain letter.

        Decoders treat the first token differently, mostly by dropping the space before it.
        """
        if self._neutral is None:
            letters = (self._core.token_to_id(text) for text in ("a", "▁a", "e", "▁the"))
            self._neutral = [i for i in letters if i is not None and not self.skips(i)][:1]
        return self._neutral


def _decoder_kinds(core: tokenizers.Tokenizer) -> list[str]:
    if core.decoder is None:
        return []
    state: dict[str, Any] = json.loads(core.decoder.__getstate__())
    return [part["type"] for part in state.get("decoders", [state])]


def _byte_alphabet() -> dict[str, int]:
    """Which character stands for which byte (`bytes_to_unicode`, Radford et al. 2019, GPT-2):
    printable Latin-1 characters stand for themselves, the rest for U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _spell(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:  # an added token, written as plain text
        return token.encode()
