from __future__ import annotations

import struct

import pytest

from twostroke.errors import ExportError
from twostroke.life.config_shape import shape_of
from twostroke.life.gguf_header import gguf_config

UINT32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def make(num_tokens: int = 5000, *, has_head: bool = False) -> bytes:
    numbers = {
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
    }
    pairs = [pair("general.architecture", STRING, text("qwen3"))]
    pairs += [pair(f"qwen3.{k}", UINT32, struct.pack("<I", v)) for k, v in numbers.items()]
    heads = array(UINT32, [struct.pack("<I", 2)] * 2)  # one number for each layer
    pairs.append(pair("qwen3.attention.head_count_kv", ARRAY, heads))
    tokens = array(STRING, [text("t")] * num_tokens)
    pairs.append(pair("tokenizer.ggml.tokens", ARRAY, tokens))
    pairs.append(pair("tokenizer.ggml.scores", ARRAY, array(6, [b"\0" * 4] * 5000)))
    names = ["token_embd.weight", *(["output.weight"] if has_head else [])]
    tensors = b"".join(text(n) + struct.pack("<IQQIQ", 2, 64, 5, 0, 0) for n in names)
    counts = struct.pack("<IQQ", 3, len(names), len(pairs))
    return b"GGUF" + counts + b"".join(pairs) + tensors


@pytest.mark.parametrize("num_tokens", [7, 5000])
def test_it_says_what_a_config_says(tmp_path, num_tokens):
    path = tmp_path / "model.gguf"
    path.write_bytes(make(num_tokens))
    shape = shape_of(gguf_config(path), str(path))
    assert (shape.model_type, shape.vocab_size, shape.is_tied) == ("qwen3", num_tokens, True)
    assert (shape.num_layers, shape.ffn_size, shape.context_tokens) == (2, 96, 128)
    assert (shape.layers[0].num_kv_heads, shape.layers[0].head_dim) == (2, 16)


def test_a_head_of_its_own_is_a_tensor(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(make(has_head=True))
    assert gguf_config(path)["tie_word_embeddings"] is False


def test_every_cut_is_told(tmp_path):
    whole, path = make(7), tmp_path / "model.gguf"
    for length in range(4, len(whole) - 20_200, 7):  # up to the scores, which are skipped over
        path.write_bytes(whole[:length])
        with pytest.raises(ExportError, match="truncated or damaged"):
            gguf_config(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PK\3\4rest", "is not a GGUF file"), (b"GGUF\x01\0\0\0", "has GGUF version 1")],
)
def test_other_files_are_refused(tmp_path, content, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=said):
        gguf_config(path)
