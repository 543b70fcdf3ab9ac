"""Checks a Hugging Face folder: its config, its architecture, its weights and its tokenizer.

Nothing here imports torch, so that what is wrong is said at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from twostroke.bundle.open import hash_file
from twostroke.errors import ExportError
from twostroke_export.known import causal_architectures
from twostroke_export.safetensors_file import read_shapes

ADAPTER_CONFIG = "adapter_config.json"
_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer.model", "vocab.json", "spiece.model")


def check_folder(folder: Path) -> dict[str, Any]:
    """Refuses what cannot be loaded; returns facts for the manifest.

    Raises:
        ExportError: naming the file at fault and what is wrong with it.
    """
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / _CONFIG).is_file():
        base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
        raise ExportError(
            f"{folder} holds only an adapter; name its base model ({base}) as the source and the "
            f"adapter with --adapter."
        )
    config = read_json(folder / _CONFIG)
    check_model_type(config.get("model_type"), folder)
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None:
        raise ExportError(
            f"{folder} holds weights that are already quantised ({method}); export the original "
            f"model instead, twostroke quantises it itself."
        )
    shards = list(weight_shapes(folder))
    _check_tokenizer(folder, config)
    facts: dict[str, Any] = {"name": folder.name, "num_shards": len(shards)}
    if len(shards) == 1:
        facts |= {"file": shards[0], "sha256": hash_file(folder / shards[0])}
    return facts


def check_model_type(model_type: Any, where: Path) -> None:
    """Refuses an architecture that transformers has no causal language model for."""
    if not isinstance(model_type, str) or not model_type:
        raise ExportError(f"{where} names no model_type in its config.json; is it a model?")
    if model_type not in causal_architectures():
        raise ExportError(
            f"{where} is a {model_type!r} model, which transformers does not know as a causal "
            f"language model; choose another model or a newer transformers."
        )


def weight_shapes(folder: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each file of weights the shape of each of its tensors, from the headers alone.

    Raises:
        ExportError: a file is missing, damaged, or not what the index says.
    """
    if (folder / _INDEX).is_file():
        return _indexed_shapes(folder)
    if (folder / _WEIGHTS).is_file():
        return {_WEIGHTS: read_shapes(folder / _WEIGHTS)}
    raise ExportError(
        f"{folder} has no {_WEIGHTS} (nor its shards); weights in other formats are not read, "
        f"save them with save_pretrained() first."
    )


def _indexed_shapes(folder: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    index = folder / _INDEX
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(v, str) for v in named.values()):
        raise ExportError(f"{index} has no weight_map of tensors to files; download it again.")
    shapes = {}
    for name in sorted(set(named.values())):
        if Path(name).name != name:
            raise ExportError(f"{index} names {name!r}, which lies outside of its folder.")
        if not (folder / name).is_file():
            raise ExportError(
                f"{folder} lacks {name}, which {_INDEX} names; download the model again."
            )
        shapes[name] = read_shapes(folder / name)
    if not shapes:
        raise ExportError(f"{folder} lacks any shard, {_INDEX} names none; download it again.")
    for tensor, name in named.items():
        if tensor not in shapes[name]:
            raise ExportError(
                f"{index} says that {tensor} lies in {name}, which does not hold it; the two "
                f"belong to different downloads."
            )
    return shapes


def _check_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ExportError(
            f"{folder} has no tokenizer ({', '.join(_TOKENIZER_FILES)}); copy it from the model's "
            f"page."
        )
    path = folder / _TOKENIZER
    if not path.is_file():
        return  # converted by transformers at the load, and checked behind it
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ExportError(f"{path} is not a tokenizer ({error}); download it again.") from None
    highest = max(tokenizer.get_vocab().values(), default=0)
    text_config = config.get("text_config")
    vocab_size = {**(text_config if isinstance(text_config, dict) else {}), **config}.get(
        "vocab_size"
    )
    if isinstance(vocab_size, int) and highest >= vocab_size:
        raise ExportError(
            f"{path} has the id {highest} but the model only takes ids below {vocab_size}: it "
            f"belongs to another model."
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
