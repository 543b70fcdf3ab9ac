"""Checks a Hugging Face folder: its config, its architecture, its weights and its tokenizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from twostroke.bundle.open import hash_file
from twostroke.errors import ExportError

_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


def check_folder(folder: Path) -> dict[str, Any]:
    """Refuses what cannot be loaded; returns facts for the manifest.

    Raises:
        ExportError: naming the file at fault and what is wrong with it.
    """
    config = read_json(folder / "config.json")
    check_model_type(config.get("model_type"), folder)
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None:
        raise ExportError(
            f"{folder} holds weights that are already quantised ({method}); export the original "
            f"model instead, twostroke quantises it itself."
        )
    shards = _shards(folder)
    for shard in shards:
        check_safetensors(shard)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ExportError(
            f"{folder} has no tokenizer ({', '.join(_TOKENIZER_FILES)}); copy it from the model's "
            f"page."
        )
    facts: dict[str, Any] = {"name": folder.name, "num_shards": len(shards)}
    if len(shards) == 1:
        facts |= {"file": shards[0].name, "sha256": hash_file(shards[0])}
    return facts


def check_model_type(model_type: Any, where: Path) -> None:
    """Refuses an architecture that transformers has no causal language model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if not isinstance(model_type, str) or not model_type:
        raise ExportError(f"{where} names no model_type in its config.json; is it a model?")
    if model_type not in KNOWN:
        raise ExportError(
            f"{where} is a {model_type!r} model, which transformers does not know as a causal "
            f"language model; choose another model or a newer transformers."
        )


def check_safetensors(path: Path) -> None:
    """Refuses a file whose header does not parse or whose size differs from what it declares."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MAX_HEADER_BYTES + 1
        raw = file.read(length) if length <= min(_MAX_HEADER_BYTES, size) else b""
    try:
        header = json.loads(raw)
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name[:2] != "__"]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise ExportError(f"{path} is not a safetensors file; download it again.") from None
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        raise ExportError(
            f"{path} is truncated: {size:,} bytes instead of {expected:,}; download it again."
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ExportError: no such file, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(
            f"{path.parent} has no {path.name}; name a Hugging Face model folder."
        ) from None
    except (ValueError, OSError) as error:
        raise ExportError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ExportError(f"{path} holds no JSON object; download it again.")
    return value


def _shards(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        named = read_json(folder / _INDEX).get("weight_map") or {}
        shards = [folder / name for name in sorted(set(named.values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing or not shards:
            what = missing[0] if missing else "any shard"
            raise ExportError(
                f"{folder} lacks {what}, which {_INDEX} names; download the model again."
            )
        return shards
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    raise ExportError(
        f"{folder} has no {_WEIGHTS} (nor its shards); weights in other formats are not read, "
        f"save them with save_pretrained() first."
    )
