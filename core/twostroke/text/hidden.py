"""Control tokens in what users write, hidden from the template and from the tokenizer."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from twostroke.text.tokenizer import Tokenizer


class HiddenTokens:
    """Control tokens taken out of messages, each replaced by a number nobody can guess.

    Digits survive whatever a template does to a text: trimming, changing case, writing JSON.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nonce = f"{secrets.randbits(120):037d}"
        self._texts: list[str] = []

    def hide(self, content: str, role: str) -> str:
        """`content` with control tokens replaced. Mutates self: remembers them.

        What an assistant has said may hold `<think>` and its like: templates look for them there.
        """
        control = self._tokenizer.control
        is_assistant = role == "assistant"
        pattern = control.special_pattern if is_assistant else control.pattern
        hidden = pattern.sub(lambda found: self._put_away(found[0]), content)
        if self._tokenizer.control_is_normalised:
            ids = self._tokenizer.encode(hidden, special=True, add_bos=False)
            forbidden = control.special_id_set if is_assistant else control.id_set
            if not forbidden.isdisjoint(ids):
                return self._put_away(content)
        return hidden

    def hide_all(self, value: Any, role: str) -> Any:
        """`value`, made of lists and objects, with the control tokens of all its texts replaced.

        Mutates self.
        """
        if isinstance(value, str):
            return self.hide(value, role)
        if isinstance(value, Mapping):
            return {
                self.hide_all(key, role): self.hide_all(each, role) for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hide_all(each, role) for each in value]
        return value

    def split(self, rendered: str) -> list[str]:
        """`rendered` as template text and hidden texts, in turn, beginning with template text."""
        pieces = re.split(f"{self._nonce}(\\d{{6}})", rendered)
        pieces[1::2] = [self._texts[int(rank)] for rank in pieces[1::2]]
        return pieces

    def _put_away(self, text: str) -> str:
        self._texts.append(text)
        return f"{self._nonce}{len(self._texts) - 1:06d}"
