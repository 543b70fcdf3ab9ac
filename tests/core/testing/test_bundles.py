from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import GenerationDefaults
from twostroke.errors import BundleError
from twostroke.testing import byte_tokenizer, make_echo_bundle
from twostroke.testing.bundles import SEPARATOR, SEPARATOR_ID


def test_the_bundle_opens_like_any_other(tmp_path):
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo", context_tokens=99, name="parrot"))
    assert (bundle.manifest.name, bundle.manifest.context_tokens) == ("parrot", 99)
    assert bundle.manifest.generation == GenerationDefaults(temperature=0.0)
    saved = Tokenizer.from_file(str(bundle.root / "tokenizer.json"))
    assert saved.get_vocab_size() == bundle.manifest.architecture.vocab_size == 260
    assert bundle.file("chat_template.jinja") is not None


def test_a_bundle_may_lack_a_template(tmp_path):
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo", chat_template=None))
    assert bundle.file("chat_template.jinja") is None


def test_an_existing_folder_is_not_overwritten(tmp_path):
    with pytest.raises(BundleError, match="exists already"):
        make_echo_bundle(tmp_path)


@pytest.mark.parametrize("text", ["hello, world", "Grüße 😀👍🏽🇫🇷 漢字", "a\n\tb  c", "→"])
def test_every_text_survives_the_tokenizer(text):
    ids = byte_tokenizer().encode(text).ids
    assert byte_tokenizer().decode(ids) == text


def test_the_separator_is_one_visible_token():
    assert byte_tokenizer().encode(f"a{SEPARATOR}b").ids[1] == SEPARATOR_ID
    assert byte_tokenizer().decode([SEPARATOR_ID]) == SEPARATOR


def test_special_tokens_are_one_id_each():
    ids = byte_tokenizer().encode("<|endoftext|><|im_start|><|im_end|>").ids
    assert ids == [0, 1, 2]
    assert byte_tokenizer().decode(ids) == ""
