"""Checks a .gguf file and reads the metadata that transformers leaves aside.

Nothing here imports torch, so that what is wrong is said at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize

from twostroke.bundle.open import hash_file
from twostroke.errors import ExportError
from twostroke_export.gguf_reading import open_reader
from twostroke_export.known import gguf_architectures

CONTEXT_LENGTH = "context_length"  # without the architecture that the file writes before it
_UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
_TOKENS = "tokenizer.ggml.tokens"
_EMBEDDING = "token_embd.weight"
_WANTED = (
    "general.architecture",
    "general.name",
    "tokenizer.chat_template",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.padding_token_id",
)


def check_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuses a damaged or unknown file; returns facts for the manifest and its metadata.

    Raises:
        ExportError: not a GGUF file, truncated, a shard of several, an unknown architecture or
            type of tensor, or a tokenizer that is missing or of another model.
    """
    reader = _open(path)
    metadata = {key: reader.fields[key].contents() for key in _WANTED if key in reader.fields}
    length = reader.fields.get(f"{metadata.get('general.architecture')}.context_length")
    metadata |= {CONTEXT_LENGTH: length.contents()} if length is not None else {}
    num_shards = reader.fields["split.count"].contents() if "split.count" in reader.fields else 1
    if num_shards > 1:
        raise ExportError(
            f"{path} is one of {num_shards} shards; merge them with "
            f"`llama-gguf-split --merge` first."
        )
    if not reader.tensors:
        raise ExportError(f"{path} holds no tensors, only metadata; name the model's own file.")
    _check_architecture(path, metadata)
    _check_types(path, reader)
    _check_tokenizer(path, reader)
    return {"sha256": hash_file(path), "num_bytes": path.stat().st_size}, metadata


def _open(path: Path) -> GGUFReader:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ExportError(f"{path} is not a GGUF file; name the model's .gguf file.")
    try:
        return open_reader(path)
    except Exception as error:  # the reader fails in many ways on a short or damaged file
        unknown = _UNKNOWN_TYPE.search(str(error))
        if unknown is not None:
            raise ExportError(
                f"{path} holds tensors of a type that the gguf package does not know (number "
                f"{unknown[1]}); update the package, or export another file of the model."
            ) from None
        raise ExportError(
            f"{path} is truncated or damaged ({path.stat().st_size:,} bytes could not be read as "
            f"GGUF); download it again."
        ) from error


def _check_architecture(path: Path, metadata: dict[str, Any]) -> None:
    architecture = str(metadata.get("general.architecture", ""))
    # GGUF writes qwen2moe and gpt-oss for what transformers calls qwen2_moe and gpt_oss.
    known = {name.replace("_", "").replace("-", "") for name in gguf_architectures()}
    if architecture.replace("_", "").replace("-", "") not in known:
        raise ExportError(
            f"{path} is a {architecture!r} model, an architecture that transformers does not read "
            f"from GGUF; export the model's Hugging Face folder instead."
        )


def _check_types(path: Path, reader: GGUFReader) -> None:
    """Tries one block of zeros of each type: only the package itself knows what it can read."""
    for kind in sorted({tensor.tensor_type for tensor in reader.tensors}):
        _, block_bytes = GGML_QUANT_SIZES[kind]
        try:
            dequantize(_one_block(kind, block_bytes), kind)
        except NotImplementedError:
            raise ExportError(
                f"{path} holds tensors of the type {kind.name}, which cannot be read; export "
                f"another file of the model, such as Q8_0, or its Hugging Face folder."
            ) from None


def _one_block(kind: GGMLQuantizationType, block_bytes: int) -> np.ndarray[Any, np.dtype[Any]]:
    plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    return np.zeros(1, plain[kind]) if kind in plain else np.zeros(block_bytes, np.uint8)


def _check_tokenizer(path: Path, reader: GGUFReader) -> None:
    tokens = reader.fields.get(_TOKENS)
    if tokens is None:
        raise ExportError(f"{path} holds no tokenizer; export the model's Hugging Face folder.")
    rows = [int(tensor.shape[-1]) for tensor in reader.tensors if tensor.name == _EMBEDDING]
    if rows and len(tokens.data) > rows[0]:
        raise ExportError(
            f"{path} has a tokenizer of {len(tokens.data)} ids but an embedding of only {rows[0]}: "
            f"it belongs to another model."
        )
