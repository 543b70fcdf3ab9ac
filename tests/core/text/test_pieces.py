"""The text of each token: together they are the whole text, whatever the vocabulary."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from twostroke.testing.bundles import byte_tokenizer
from twostroke.text import Tokenizer
from twostroke.text.pieces import token_texts

from .conftest import sentencepiece_core


def cores():
    return [byte_tokenizer(), sentencepiece_core()]


@pytest.mark.parametrize("core", cores(), ids=["bytes", "sentencepiece"])
def test_the_pieces_together_are_the_text(core):
    tokenizer = Tokenizer(core)
    text = "say ü 日本 😀 again and again"
    ids = tokenizer.encode(text, special=False, add_bos=False)
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts).strip() == text


def test_a_control_token_is_written_by_its_name():
    core = byte_tokenizer()
    core.add_special_tokens([AddedToken("<|mark|>", special=True)])
    tokenizer = Tokenizer(core)
    ids = tokenizer.encode("a<|mark|>b", special=True, add_bos=False)
    assert token_texts(tokenizer, ids) == ["a", "<|mark|>", "b"]


def test_what_is_no_character_becomes_one_sign():
    tokenizer = Tokenizer(byte_tokenizer())
    ids = tokenizer.encode("é", special=False, add_bos=False)
    assert token_texts(tokenizer, ids[:1]) == ["\ufffd"]
    assert token_texts(tokenizer, []) == []
