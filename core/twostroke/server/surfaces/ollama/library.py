"""What Ollama's clients ask about models: which there are, what each is, which are in memory.

Everything is what the bundle and the running engine say; of a model that is not loaded, only what
is known without them. A digest is that of the bundle's manifest, which holds those of all its
files. A model goes by a name with a tag: `NAME:latest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from twostroke.bundle.digest import digest_of
from twostroke.bundle.manifest import MANIFEST_NAME, Manifest
from twostroke.model import Model
from twostroke.server.served import Resident, Served
from twostroke.server.surfaces.ollama.names import tagged_name
from twostroke.text.parsers.spec import active_tags

_UNKNOWN_DATE = "1970-01-01T00:00:00Z"
_NEVER = "9999-12-31T23:59:59Z"  # when a model that stays is unloaded


def can_think(model: Model) -> bool:
    """Whether answers may hold reasoning that is read apart from them."""
    reader = model.reader
    if reader is None:
        return False
    return any(tag.kind == "reasoning" for tag in active_tags(reader.spec, reader.template))


def listed(served: Served) -> dict[str, Any]:
    """A model in the list of `/api/tags`."""
    resident = served.resident
    return {
        **_named(served),
        **(_unknown_facts() if resident is None else _facts(resident.model)),
        "details": _details(None if resident is None else resident.model.bundle.manifest),
    }


def running(served: Served, resident: Resident) -> dict[str, Any]:
    """A model in the list of `/api/ps`; its size is what the memory plan counts right now."""
    model = resident.model
    size = model.status()["memory"]["planned_now_bytes"]
    return {
        **_named(served),
        "size": size,
        "digest": _digest(model),
        "details": _details(model.bundle.manifest),
        "expires_at": _expires_at(served, resident),
        "size_vram": 0 if model.device_kinds == {"cpu"} else size,
        "context_length": model.context_tokens,
    }


def shown(served: Served) -> dict[str, Any]:
    """A model as `/api/show` tells of it."""
    model = None if served.resident is None else served.resident.model
    manifest = None if model is None else model.bundle.manifest
    template = None if model is None else model.template
    return {
        "modelfile": "# This server has no Modelfiles: its YAML says what is served.\n"
        f"FROM {served.name}\n",
        "parameters": "\n".join(_parameters(manifest)),
        "template": "" if template is None else template.source,
        "details": _details(manifest),
        "model_info": _model_info(served, manifest),
        "capabilities": _capabilities(model),
        "modified_at": _UNKNOWN_DATE if model is None else _modified_at(model),
    }


def _named(served: Served) -> dict[str, str]:
    name = tagged_name(served.name)
    return {"name": name, "model": name}


def _capabilities(model: Model | None) -> list[str]:
    """What a model can do, by Ollama's words."""
    found = ["completion"]
    if model is not None and model.template is not None and model.reader is not None:
        found.append("tools")
    if model is not None and can_think(model):
        found.append("thinking")
    return found


def _facts(model: Model) -> dict[str, Any]:
    size = model.bundle.num_bytes
    return {"modified_at": _modified_at(model), "size": size, "digest": _digest(model)}


def _unknown_facts() -> dict[str, Any]:
    return {"modified_at": _UNKNOWN_DATE, "size": 0, "digest": ""}


def _details(manifest: Manifest | None) -> dict[str, Any]:
    family = "" if manifest is None else manifest.architecture.model_type
    num_parameters = 0 if manifest is None else manifest.architecture.num_parameters
    return {
        "parent_model": "",
        "format": "onnx",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _parameter_size(num_parameters),
        "quantization_level": "" if manifest is None else manifest.precision.upper(),
    }


def _parameter_size(num_parameters: int) -> str:
    """E.g. `134.5M`, as Ollama writes it; "" where it is not known."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return str(num_parameters) if num_parameters else ""


def _digest(model: Model) -> str:
    manifest = model.bundle.manifest
    return manifest.manifest_sha256 or digest_of(manifest.model_dump(mode="json"))


def _modified_at(model: Model) -> str:
    path = model.bundle.root / MANIFEST_NAME
    path = path if path.is_file() else model.bundle.root  # another tool's folder has no manifest
    return _written(datetime.fromtimestamp(path.stat().st_mtime, UTC))


def _expires_at(served: Served, resident: Resident) -> str:
    if served.keep_alive_s is None:
        return _NEVER
    left_s = max(0.0, served.keep_alive_s - resident.idle_s())
    return _written(datetime.now(UTC) + timedelta(seconds=left_s))


def _written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _parameters(manifest: Manifest | None) -> Iterator[str]:
    recommended = {} if manifest is None else manifest.generation.model_dump(exclude_none=True)
    for name, value in recommended.items():
        told = "repeat_penalty" if name == "repetition_penalty" else name
        yield f"{told:<30} {value}"


def _model_info(served: Served, manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {"general.basename": served.name}
    shape, kind = manifest.architecture, manifest.architecture.model_type
    info: dict[str, Any] = {
        "general.architecture": kind,
        "general.basename": manifest.name,
        "general.parameter_count": shape.num_parameters,
        f"{kind}.context_length": served.context_tokens,
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
