from __future__ import annotations

import codecs

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from twostroke.text import Detokenizer, Tokenizer

BROKEN = "\ufffd"
QUICK = settings(max_examples=150, deadline=None)


def pieces_of(tokenizer: Tokenizer, ids: list[int], context: list[int] | None = None) -> list[str]:
    stream = Detokenizer(tokenizer, context or [])
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


codecs.register_error("one-a-byte", lambda error: (BROKEN * (error.end - error.start), error.end))


def expected_llama(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The decoder of a SentencePiece vocabulary, with only broken bytes spoilt."""
    raw = b""
    for token_id in ids:
        byte = tokenizer.decoding.single_byte(token_id)
        if token_id in tokenizer.decoding.special_ids:
            continue
        text = (tokenizer.token(token_id) or "").replace("▁", " ")
        raw += text.encode() if byte is None else bytes([byte])
    text = raw.decode("utf-8", "one-a-byte")
    return text.removeprefix(" ")


@given(ids=st.lists(st.integers(0, 49_151), max_size=60))
@QUICK
def test_byte_level_pieces_are_the_whole(demo: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces_of(demo, ids)) == demo.decode(ids)


@given(ids=st.lists(st.integers(0, 600), max_size=60))
@QUICK
def test_short_tokens_make_broken_characters_as_the_whole_does(
    demo: Tokenizer, ids: list[int]
) -> None:
    assert "".join(pieces_of(demo, ids)) == demo.decode(ids)


@given(text=st.text(max_size=40))
@QUICK
def test_no_piece_of_valid_text_is_broken(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text, special=False, add_bos=False)
    pieces = pieces_of(demo, ids)
    whole = demo.decode(ids)  # not always `text`: the vocabulary lacks some bytes
    assert "".join(pieces) == whole
    assert BROKEN in whole or not any(BROKEN in piece for piece in pieces)


@given(data=st.data())
@QUICK
def test_sentencepiece_pieces_are_the_whole(llama_like: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, llama_like.vocab_size - 1), max_size=50))
    text = "".join(pieces_of(llama_like, ids))
    assert text == expected_llama(llama_like, ids)
    if BROKEN not in text:
        assert text == llama_like.decode(ids)


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40))
@QUICK
@pytest.mark.parametrize("kind", ["llama_like", "metaspace_like"])
def test_sentencepiece_text_survives(
    kind: str, text: str, llama_like: Tokenizer, metaspace_like: Tokenizer
) -> None:
    tokenizer = llama_like if kind == "llama_like" else metaspace_like
    ids = tokenizer.encode(text, special=False, add_bos=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert text.startswith(" ") or tokenizer.decode(ids) == text  # Metaspace eats a first space
    assert BROKEN in text or not any(BROKEN in piece for piece in pieces)


@pytest.mark.parametrize("text", ["😀👍🏽🇫🇷", "ꦲꦏ꧀ꦱꦫ", "你好，世界", "e\u0301 ﷽"])
@pytest.mark.parametrize("kind", ["demo", "llama_like", "metaspace_like"])
def test_characters_of_several_tokens_arrive_whole(
    kind: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text, special=False, add_bos=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == text
    assert any(not piece for piece in pieces[:-1])  # some token ended within a character
    assert sum(bool(piece) for piece in pieces) > 1  # not all at the end
    assert pieces[-1] == ""


def test_a_cut_character_comes_out_as_the_whole_has_it(demo: Tokenizer) -> None:
    ids = demo.encode("ok 😀", special=False, add_bos=False)[:-1]
    pieces = pieces_of(demo, ids)
    assert not any(BROKEN in piece for piece in pieces[:-1])
    assert pieces[-1] == BROKEN
    assert "".join(pieces) == demo.decode(ids)


def test_a_broken_byte_spoils_nothing_but_itself(llama_like: Tokenizer) -> None:
    ids = llama_like.encode("éé", special=False, add_bos=False)
    text = "".join(pieces_of(llama_like, ids[:-1]))
    assert text == "é" + BROKEN


def test_special_tokens_do_not_show_or_part_characters(demo: Tokenizer) -> None:
    ids = demo.encode("a😀b", special=False, add_bos=False)
    mixed = [token for token_id in ids for token in (2, token_id)]
    assert "".join(pieces_of(demo, mixed)) == "a😀b"


def test_ids_beyond_the_vocabulary_show_nothing(demo: Tokenizer) -> None:
    assert "".join(pieces_of(demo, [10_000_000, 5])) == demo.decode([5])


def test_the_space_behind_a_prompt_is_kept(llama_like: Tokenizer) -> None:
    prompt = llama_like.encode("the", special=False, add_bos=True)
    answer = llama_like.encode("Paris", special=False, add_bos=False)
    assert "".join(pieces_of(llama_like, answer, prompt)) == " Paris"
    assert "".join(pieces_of(llama_like, answer)) == "Paris"


def test_behind_a_control_token_a_text_begins_anew(llama_like: Tokenizer) -> None:
    answer = llama_like.encode("Paris", special=False, add_bos=False)
    assert "".join(pieces_of(llama_like, answer, [1])) == "Paris"


def test_a_suffix_decoder_keeps_its_spaces() -> None:
    vocab = {"he</w>": 0, "llo": 1, "ll": 2, "o</w>": 3}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    core.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer = Tokenizer(core)
    ids = [0, 1, 3, 0, 2]
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_text_that_means_the_replacement_character_is_not_held_for_ever() -> None:
    core = tokenizers.Tokenizer(models.WordLevel({BROKEN: 0, "x": 1}, unk_token="x"))
    core.decoder = decoders.Fuse()
    tokenizer = Tokenizer(core)
    pieces = pieces_of(tokenizer, [0] * 20)
    assert "".join(pieces) == BROKEN * 20
    assert any(pieces[:-1])
