"""Control tokens: the ones that steer a model and that only a template may write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from twostroke.types import TokenId


class AddedToken(Protocol):
    """What is asked of a `tokenizers.AddedToken`."""

    content: str
    special: bool


@dataclass(frozen=True)
class ControlTokens:
    """Control tokens by their text. `special` is the part that the tokenizer itself calls so;
    the rest are tokens such as `<think>` that the model's template writes.
    """

    ids: Mapping[str, TokenId] = field(default_factory=dict)
    special: frozenset[str] = frozenset()

    def __contains__(self, text: object) -> bool:
        return text in self.ids

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds any control token in a text, the longest first."""
        return _any_of(self.ids)

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Finds any control token that the tokenizer calls special, the longest first."""
        return _any_of(self.special)

    @cached_property
    def id_set(self) -> frozenset[TokenId]:
        """The ids alone."""
        return frozenset(self.ids.values())

    @cached_property
    def special_id_set(self) -> frozenset[TokenId]:
        """The ids of those that the tokenizer calls special."""
        return frozenset(self.ids[text] for text in self.special)


def control_tokens(added: Mapping[TokenId, AddedToken], template_source: str) -> ControlTokens:
    """Picks the control tokens among the tokens `added` to a vocabulary.

    Special ones are; others (runs of spaces, say) are not, unless they look like markup and the
    chat template writes them.
    """
    special = {token.content for token in added.values() if token.special and token.content}
    ids = {
        token.content: token_id
        for token_id, token in added.items()
        if token.content in special
        or (re.fullmatch(r"[<\[].*[>\]]", token.content) and token.content in template_source)
    }
    return ControlTokens(ids, frozenset(special))


def _any_of(texts: Mapping[str, TokenId] | frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")  # (?!) finds nothing
