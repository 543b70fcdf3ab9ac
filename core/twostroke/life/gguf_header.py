"""What a .gguf file says of its model: key and value pairs and the names of its tensors.

Read by hand, because the package `gguf` belongs to exporting. Layout from ggml's docs/gguf.md
(version 2 and 3, little endian).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from twostroke.errors import ExportError

_MAGIC = b"GGUF"
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_FORMATS |= {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_TEXT_BYTES = 1 << 24
_KEPT_ITEMS = 4096  # of longer arrays (a vocabulary) only the length is of use
_TYPES = {"gptneox": "gpt_neox", "phi2": "phi"}  # where GGUF names a family otherwise
_CONFIG = {  # config.json's key by GGUF's, which the architecture's name precedes
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "ssm.state_size": "ssm_state_size",
}


@dataclass(frozen=True, slots=True)
class _Long:
    """An array whose items are of no use."""

    num_items: int


def gguf_config(path: Path) -> Mapping[str, Any]:
    """The facts of a .gguf file under the names of a config.json.

    Raises:
        ExportError: it is no GGUF file, or cut off.
    """
    try:
        with path.open("rb") as file:
            values, tensors = _read(file, path)
    except (struct.error, UnicodeDecodeError, EOFError) as error:
        raise ExportError(f"{path} is truncated or damaged ({error}); download it again.") from None
    architecture = str(values.get("general.architecture", ""))
    config: dict[str, Any] = {"model_type": _TYPES.get(architecture, architecture)}
    for ours, name in _CONFIG.items():
        if (value := values.get(f"{architecture}.{ours}")) is not None:
            config[name] = value
    tokens = values.get("tokenizer.ggml.tokens", values.get(f"{architecture}.vocab_size"))
    config["vocab_size"] = tokens.num_items if isinstance(tokens, _Long) else tokens
    if isinstance(tokens, list):
        config["vocab_size"] = len(tokens)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    return config


def _read(file: BinaryIO, path: Path) -> tuple[dict[str, Any], set[str]]:
    if file.read(4) != _MAGIC:
        raise ExportError(f"{path} is not a GGUF file; name the model's .gguf file.")
    (version,) = _unpack(file, "<I")
    if version not in (2, 3):
        raise ExportError(f"{path} has GGUF version {version}; versions 2 and 3 are read.")
    num_tensors, num_values = _unpack(file, "<QQ")
    values = {}
    for _ in range(num_values):
        key = _text(file)
        values[key] = _value(file, _unpack(file, "<I")[0])
    tensors = set()
    for _ in range(num_tensors):
        tensors.add(_text(file))
        (num_dims,) = _unpack(file, "<I")
        file.seek(8 * num_dims + 4 + 8, 1)  # its shape, type and place
    return values, tensors


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind in _FORMATS:
        return _unpack(file, _FORMATS[kind])[0]
    if kind != _ARRAY:
        raise EOFError(f"a value of the unknown type {kind}")
    item_kind, num_items = _unpack(file, "<IQ")
    if num_items <= _KEPT_ITEMS:
        return [_value(file, item_kind) for _ in range(num_items)]
    if item_kind in _FORMATS:
        file.seek(struct.calcsize(_FORMATS[item_kind]) * num_items, 1)
        return _Long(num_items)
    for _ in range(num_items):
        _value(file, item_kind)
    return _Long(num_items)


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _MAX_TEXT_BYTES:
        raise EOFError(f"a text of {length} bytes")
    data = file.read(length)
    if len(data) < length:
        raise EOFError("it ends within a text")
    return data.decode("utf-8")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))
