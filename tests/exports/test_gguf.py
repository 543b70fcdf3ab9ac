"""GGUF files, made here by the gguf package: a tiny llama with its tokenizer inside."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from twostroke.bundle import open_bundle
from twostroke.errors import ExportError
from twostroke_export.pipeline import export_all
from twostroke_export.source import resolve

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 128, 4, 2, 2
VOCAB = 3 + 256 + 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_gguf(path: Path, architecture: str = "llama", num_splits: int = 0) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("Tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    if num_splits:
        writer.add_uint16("split.count", num_splits)
    add_tokenizer(writer)
    add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "th", "an"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h", "a n"])
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def add_tensors(writer: gguf.GGUFWriter) -> None:
    random = np.random.default_rng(0)
    side = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (side, HIDDEN),
            f"blk.{layer}.attn_v": (side, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FFN, HIDDEN),
            f"blk.{layer}.ffn_up": (FFN, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FFN),
        }
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32) * 0.1
        writer.add_tensor(f"{name}.weight", values + (len(shape) == 1))


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def refused(path: Path) -> str:
    with pytest.raises(ExportError) as caught:
        resolve(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_exports_with_template_and_special_ids_of_its_metadata(tiny_gguf, tmp_path):
    seen = []
    export_all(str(tiny_gguf), {"fp32": tmp_path / "out"}, on_progress=seen.append)
    bundle = open_bundle(tmp_path / "out")
    manifest = bundle.manifest
    assert manifest.name == "tiny"
    assert manifest.context_tokens == 128
    assert manifest.tokens.eos_ids == (0, 2)
    assert manifest.tokens.bos_id == 1
    assert manifest.source["kind"] == "gguf"
    assert manifest.source["file"] == "tiny.gguf"
    assert manifest.source["num_bytes"] == tiny_gguf.stat().st_size
    assert bundle.file("chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert bundle.file("tokenizer.json") is not None
    assert len({stage.fraction for stage in seen if stage.stage == "load"}) > 5  # it moves


def test_a_folder_with_one_gguf_file_is_that_file(tiny_gguf):
    source = resolve(str(tiny_gguf.parent))
    assert source.gguf_file == "tiny.gguf"
    assert source.gguf_metadata["general.architecture"] == "llama"
    assert source.limit_tokens == 128


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file(tiny_gguf, tmp_path, share):
    content = tiny_gguf.read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(content[: int(len(content) * share)])
    assert "short.gguf is truncated or damaged" in refused(path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04" + b"0" * 100])
def test_something_else(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    assert "other.gguf is not a GGUF file" in refused(path)


def test_an_unknown_architecture(tmp_path):
    path = write_gguf(tmp_path / "rwkv.gguf", architecture="rwkv99")
    assert "'rwkv99' model, an architecture that transformers does not read" in refused(path)


def test_one_of_several_shards(tmp_path):
    path = write_gguf(tmp_path / "part.gguf", num_splits=3)
    assert "part.gguf is one of 3 shards" in refused(path)
