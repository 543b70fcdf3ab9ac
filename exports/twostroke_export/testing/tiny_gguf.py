"""A tiny random llama as a .gguf file, its tokenizer inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 256, 4, 2, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = len(SPECIAL) + 256 + 2

Kind = gguf.GGMLQuantizationType
Stored = tuple[npt.NDArray[Any], Any]  # bytes or values, and their `Kind` or None


def tensors() -> dict[str, npt.NDArray[np.float32]]:
    """The weights by their names in the file, the same on every call; norms are around one."""
    random = np.random.default_rng(0)
    side = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
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
    return {
        f"{name}.weight": random.standard_normal(shape, np.float32) * np.float32(0.1)
        + np.float32(len(shape) == 1)
        for name, shape in shapes.items()
    }


def save_tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    stored: Mapping[str, Stored] | None = None,
    num_splits: int = 0,
    extra_tokens: int = 0,
) -> Path:
    """Writes the model to `path` and answers it.

    `stored` replaces tensors by bytes of a type of their own; `num_splits` makes it say that it is
    one of so many; `extra_tokens` are more than the embedding has rows for.
    """
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
    _add_tokenizer(writer, extra_tokens)
    for name, values in tensors().items():
        data, kind = (stored or {}).get(name, (values, None))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, extra_tokens: int) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "th", "an"]
    tokens += [f"more{i}" for i in range(extra_tokens)]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h", "a n"])
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
