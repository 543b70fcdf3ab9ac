"""A random llama of any size, written shard by shard: larger ones than memory would hold twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from twostroke_export.testing.tiny_models import SIZES, tiny_tokenizer


def save_sharded_model(
    folder: Path,
    *,
    num_layers: int = 8,
    hidden_size: int = 1024,
    intermediate_size: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """Writes config, tokenizer, index and a shard a layer into `folder`.

    Answers how many bytes the weights take in float32.
    """
    folder.mkdir(parents=True)
    config = {
        **SIZES,
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    weight_map: dict[str, str] = {}
    num_weights = 0
    for number, shapes in enumerate(_shards(num_layers, hidden_size, intermediate_size), start=1):
        name = f"model-{number:05d}-of-{num_layers + 1:05d}.safetensors"
        tensors = {path: _random(shape).to(dtype) for path, shape in shapes.items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        num_weights += sum(tensor.numel() for tensor in tensors.values())
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return 4 * num_weights


def _shards(num_layers: int, hidden: int, inner: int) -> Iterator[dict[str, tuple[int, ...]]]:
    square = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (hidden, hidden))
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}"
        yield (
            {f"{prefix}.self_attn.{name}.weight": shape for name, shape in square.items()}
            | {f"{prefix}.mlp.{name}.weight": shape for name, shape in mlp.items()}
            | {
                f"{prefix}.{name}.weight": (hidden,)
                for name in ("input_layernorm", "post_attention_layernorm")
            }
        )
    vocab = (int(str(SIZES["vocab_size"])), hidden)
    yield {
        "model.embed_tokens.weight": vocab,
        "model.norm.weight": (hidden,),
        "lm_head.weight": vocab,
    }


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    """Gains near one; matrices whose products keep the size of what they are given."""
    if len(shape) == 1:
        return torch.ones(shape) + 0.1 * torch.randn(shape)
    return torch.randn(shape) / shape[-1] ** 0.5
