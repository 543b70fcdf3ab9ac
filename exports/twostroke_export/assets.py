"""What a bundle holds beside its graphs: tokenizer, chat template, special ids, defaults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twostroke.bundle.manifest import GenerationDefaults, Tokens
from twostroke.errors import ExportError
from twostroke_export.folder import read_json
from twostroke_export.load import Loaded
from twostroke_export.source import Source

_COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_TEMPLATE = "chat_template.jinja"


def write_assets(source: Source, loaded: Loaded, folder: Path) -> None:
    """Puts the tokenizer's files, the chat template and the generation config into `folder`.

    Files of a Hugging Face folder are copied as they are; what is missing (or comes from a GGUF
    file) is written by transformers.
    """
    for name in _COPIED:
        original = source.folder / name
        if source.gguf_file is None and original.is_file():
            shutil.copyfile(original, folder / name)
    if not (folder / "tokenizer.json").is_file():
        loaded.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    if not (folder / "tokenizer_config.json").is_file():
        _write_json(folder / "tokenizer_config.json", _special_tokens(loaded.tokenizer))
    template = _chat_template(source, loaded)
    if template:
        (folder / _TEMPLATE).write_text(template, encoding="utf-8", newline="\n")


def _chat_template(source: Source, loaded: Loaded) -> str | None:
    template = loaded.tokenizer.chat_template or source.gguf_metadata.get("tokenizer.chat_template")
    if isinstance(template, dict):  # several by name
        template = template.get("default") or next(iter(template.values()), None)
    return template if isinstance(template, str) and template.strip() else None


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name, None)}


def special_ids(source: Source, loaded: Loaded) -> Tokens:
    """Ids with a meaning; whatever says that a sequence ends ends it.

    Raises:
        ExportError: an id lies outside the vocabulary.
    """
    config, tokenizer = loaded.model.config, loaded.tokenizer
    metadata = source.gguf_metadata
    eos = {
        *_ids(getattr(config, "eos_token_id", None)),
        *_ids(getattr(loaded.model.generation_config, "eos_token_id", None)),
        *_ids(tokenizer.eos_token_id),
        *_ids(metadata.get("tokenizer.ggml.eos_token_id")),
        *_ids(metadata.get("tokenizer.ggml.eot_token_id")),
        *_ids(metadata.get("tokenizer.ggml.eom_token_id")),
    }
    bos = _first(tokenizer.bos_token_id, metadata.get("tokenizer.ggml.bos_token_id"))
    pad = _first(tokenizer.pad_token_id, getattr(config, "pad_token_id", None))
    outside = [i for i in (*eos, bos, pad) if i is not None and not 0 <= i < loaded.vocab_size]
    if outside:
        raise ExportError(
            f"{source.name} names the special id {outside[0]}, but its vocabulary has only "
            f"{loaded.vocab_size} ids; correct its config.json."
        )
    return Tokens(eos_ids=tuple(sorted(eos)), bos_id=bos, pad_id=pad)


def generation_defaults(source: Source) -> GenerationDefaults:
    """What the model's generation_config.json recommends; nothing where it says nothing."""
    path = source.folder / "generation_config.json"
    if source.gguf_file is not None or not path.is_file():
        return GenerationDefaults()
    given = read_json(path)
    values = {
        name: given[name]
        for name in GenerationDefaults.model_fields
        if isinstance(given.get(name), (int, float)) and not isinstance(given[name], bool)
    }
    if given.get("do_sample") is False:
        values["temperature"] = 0.0
    return GenerationDefaults(**values)


def _ids(value: Any) -> Iterable[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [int(i) for i in values if i is not None]


def _first(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
