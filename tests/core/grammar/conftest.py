"""Grammars over the echo bundle's vocabulary: one token for each byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twostroke.grammar import Grammars, Matcher
from twostroke.testing.bundles import byte_tokenizer

EOS = 2
Follow = Callable[[Matcher, str], None]


@pytest.fixture(scope="session")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer = byte_tokenizer()
    tokenizer.save(str(path))
    return Grammars(path, tokenizer.get_vocab_size() + 40, frozenset({EOS}))


@pytest.fixture(scope="session")
def follow() -> Follow:
    """Lets a matcher accept a text, byte by byte, and proves that each was allowed."""
    tokenizer = byte_tokenizer()

    def follow(matcher: Matcher, text: str) -> None:
        for token_id in tokenizer.encode(text).ids:
            assert token_id in matcher.allowed(300), (text, tokenizer.decode([token_id]))
            matcher.accept(token_id)

    return follow
