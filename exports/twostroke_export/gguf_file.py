"""Checks a .gguf file and reads the metadata that transformers leaves aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twostroke.bundle.open import hash_file
from twostroke.errors import ExportError

CONTEXT_LENGTH = "context_length"  # without the architecture that the file writes before it
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
        ExportError: not a GGUF file, truncated, a shard of several, or an unknown architecture.
    """
    from gguf import GGUFReader

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ExportError(f"{path} is not a GGUF file; name the model's .gguf file.")
    try:
        reader = GGUFReader(path)
        metadata = {key: reader.fields[key].contents() for key in _WANTED if key in reader.fields}
        length = reader.fields.get(f"{metadata.get('general.architecture')}.context_length")
        metadata |= {CONTEXT_LENGTH: length.contents()} if length is not None else {}
        num_shards = (
            reader.fields["split.count"].contents() if "split.count" in reader.fields else 1
        )
        num_tensors = len(reader.tensors)
    except Exception as error:  # the reader fails in many ways on a short or damaged file
        raise ExportError(
            f"{path} is truncated or damaged ({path.stat().st_size:,} bytes could not be read as "
            f"GGUF); download it again."
        ) from error
    if num_shards > 1:
        raise ExportError(
            f"{path} is one of {num_shards} shards; merge them with gguf-split first."
        )
    if not num_tensors:
        raise ExportError(f"{path} holds no tensors, only metadata; name the model's own file.")
    _check_architecture(path, metadata)
    return {"sha256": hash_file(path), "num_bytes": path.stat().st_size}, metadata


def _check_architecture(path: Path, metadata: dict[str, Any]) -> None:
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = str(metadata.get("general.architecture", ""))
    # GGUF writes qwen2moe and gpt-oss for what transformers calls qwen2_moe and gpt_oss.
    known = {name.replace("_", "").replace("-", "") for name in GGUF_SUPPORTED_ARCHITECTURES}
    if architecture.replace("_", "").replace("-", "") not in known:
        raise ExportError(
            f"{path} is a {architecture!r} model, an architecture that transformers does not read "
            f"from GGUF; export the model's Hugging Face folder instead."
        )
