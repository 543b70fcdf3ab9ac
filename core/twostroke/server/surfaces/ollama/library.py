"""What Ollama's clients ask about models: which there are, what each is, which are in memory.

Everything is what the bundle and the running engine say. A digest is that of the bundle's manifest,
which holds those of all its files. A model goes by a name with a tag: `NAME:latest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from twostroke.bundle.digest import digest_of
from twostroke.bundle.manifest import MANIFEST_NAME, Manifest
from twostroke.model import Model
from twostroke.server.surfaces.ollama.names import tagged_name
from twostroke.text.parsers.spec import active_tags

_NEVER = "9999-12-31T23:59:59Z"  # when a model that stays is unloaded


def can_think(model: Model) -> bool:
    """Whether answers may hold reasoning that is read apart from them."""
    reader = model.reader
    if reader is None:
        return False
    return any(tag.kind == "reasoning" for tag in active_tags(reader.spec, reader.template))


def capabilities(model: Model) -> list[str]:
    """What a model can do, by Ollama's words."""
    found = ["completion"]
    if model.template is not None and model.reader is not None:
        found.append("tools")
    if can_think(model):
        found.append("thinking")
    return found


def listed(model: Model) -> dict[str, Any]:
    """A model in the list of `/api/tags`."""
    return {
        **_named(model),
        "modified_at": _modified_at(model),
        "size": model.bundle.num_bytes,
        "digest": _digest(model),
        "details": _details(model),
    }


def running(model: Model) -> dict[str, Any]:
    """A model in the list of `/api/ps`; its size is what the memory plan counts right now."""
    size = model.status()["memory"]["planned_now_bytes"]
    return {
        **_named(model),
        "size": size,
        "digest": _digest(model),
        "details": _details(model),
        "expires_at": _NEVER,
        "size_vram": 0 if model.device_kinds == {"cpu"} else size,
        "context_length": model.context_tokens,
    }


def shown(model: Model) -> dict[str, Any]:
    """A model as `/api/show` tells of it."""
    parameters = "\n".join(_parameters(model.bundle.manifest))
    told = "".join(f"# {line}\n" for line in _modelfile(model))
    return {
        "modelfile": told,
        "parameters": parameters,
        "template": "" if model.template is None else model.template.source,
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": capabilities(model),
        "modified_at": _modified_at(model),
    }


def _named(model: Model) -> dict[str, str]:
    name = tagged_name(model.name)
    return {"name": name, "model": name}


def _details(model: Model) -> dict[str, Any]:
    manifest = model.bundle.manifest
    family = manifest.architecture.model_type
    return {
        "parent_model": "",
        "format": "onnx",
        "family": family,
        "families": [family],
        "parameter_size": _parameter_size(manifest.architecture.num_parameters),
        "quantization_level": manifest.precision.upper(),
    }


def _parameter_size(num_parameters: int) -> str:
    """E.g. `134.5M`; as Ollama writes it."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return str(num_parameters)


def _digest(model: Model) -> str:
    manifest = model.bundle.manifest
    return manifest.manifest_sha256 or digest_of(manifest.model_dump(mode="json"))


def _modified_at(model: Model) -> str:
    path = model.bundle.root / MANIFEST_NAME
    path = path if path.is_file() else model.bundle.root  # another tool's folder has no manifest
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")


def _parameters(manifest: Manifest) -> Iterator[str]:
    for name, value in manifest.generation.model_dump(exclude_none=True).items():
        told = "repeat_penalty" if name == "repetition_penalty" else name
        yield f"{told:<30} {value}"


def _modelfile(model: Model) -> Iterator[str]:
    yield "This server has no Modelfiles: its YAML says what is served."
    yield f"FROM {model.bundle.manifest.name}"


def _model_info(model: Model) -> dict[str, Any]:
    manifest = model.bundle.manifest
    shape, kind = manifest.architecture, manifest.architecture.model_type
    info: dict[str, Any] = {
        "general.architecture": kind,
        "general.basename": manifest.name,
        "general.parameter_count": shape.num_parameters,
        f"{kind}.context_length": model.context_tokens,
        f"{kind}.block_count": shape.num_layers,
        f"{kind}.embedding_length": shape.hidden_size,
        f"{kind}.attention.head_count": shape.num_heads,
        f"{kind}.attention.head_count_kv": max(layer.num_kv_heads for layer in manifest.kv_layers),
        f"{kind}.vocab_size": shape.vocab_size,
    }
    if manifest.tokens.eos_ids:
        info["tokenizer.ggml.eos_token_id"] = manifest.tokens.eos_ids[0]
    if manifest.tokens.bos_id is not None:
        info["tokenizer.ggml.bos_token_id"] = manifest.tokens.bos_id
    return info
