"""What Ollama's clients ask about models: which there are, what each is, which are in memory.

Everything is what the bundle and the running engine say; of a model that is not loaded, what the
bundle alone says, where there is one already. A digest is that of the bundle's manifest, which
holds those of all its files. A model goes by a name with a tag: `NAME:latest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from twostroke.bundle import MANIFEST_NAME, Bundle
from twostroke.bundle.digest import digest_of
from twostroke.model import Model
from twostroke.server.served import Resident, Served
from twostroke.server.surfaces.ollama.bundles import bundle_of, template_of
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


async def listed(served: Served) -> dict[str, Any]:
    """A model in the list of `/api/tags`."""
    bundle = await bundle_of(served)
    return {
        **_named(served),
        "modified_at": _modified_at(bundle),
        "size": 0 if bundle is None else bundle.num_bytes,
        "digest": _digest(bundle),
        "details": _details(bundle),
    }


def running(served: Served, resident: Resident) -> dict[str, Any]:
    """A model in the list of `/api/ps`; its size is what the memory plan counts right now."""
    model = resident.model
    size = model.status()["memory"]["planned_now_bytes"]
    return {
        **_named(served),
        "size": size,
        "digest": _digest(model.bundle),
        "details": _details(model.bundle),
        "expires_at": _expires_at(served, resident),
        "size_vram": 0 if model.device_kinds == {"cpu"} else size,
        "context_length": model.context_tokens,
    }


async def shown(served: Served) -> dict[str, Any]:
    """A model as `/api/show` tells of it."""
    bundle = await bundle_of(served)
    template = await template_of(served, bundle)
    return {
        "modelfile": "# This server has no Modelfiles: its YAML says what is served.\n"
        f"FROM {served.name}\n",
        "parameters": "\n".join(_parameters(bundle)),
        "template": template or "",
        "details": _details(bundle),
        "model_info": _model_info(served, bundle),
        "capabilities": _capabilities(served, has_template=template is not None),
        "modified_at": _modified_at(bundle),
    }


def _named(served: Served) -> dict[str, str]:
    name = tagged_name(served.name)
    return {"name": name, "model": name}


def _capabilities(served: Served, *, has_template: bool) -> list[str]:
    """What a model can do, by Ollama's words; whether it thinks is known when it is loaded."""
    if served.resident is not None:
        model = served.resident.model
        is_read, thinks = model.reader is not None, can_think(model)
    else:
        is_read = served.settings is not None and served.settings.model.parser != "none"
        thinks = False
    tools = ["tools"] if has_template and is_read else []
    return ["completion", *tools, *(["thinking"] if thinks else [])]


def _details(bundle: Bundle | None) -> dict[str, Any]:
    shape = None if bundle is None else bundle.manifest.architecture
    return {
        "parent_model": "",
        "format": "onnx",
        "family": "" if shape is None else shape.model_type,
        "families": [] if shape is None else [shape.model_type],
        "parameter_size": "" if shape is None else _parameter_size(shape.num_parameters),
        "quantization_level": "" if bundle is None else bundle.manifest.precision.upper(),
    }


def _parameter_size(num_parameters: int) -> str:
    """E.g. `134.5M`, as Ollama writes it."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return str(num_parameters)


def _digest(bundle: Bundle | None) -> str:
    if bundle is None:
        return ""
    return bundle.manifest.manifest_sha256 or digest_of(bundle.manifest.model_dump(mode="json"))


def _modified_at(bundle: Bundle | None) -> str:
    if bundle is None:
        return _UNKNOWN_DATE
    path = bundle.root / MANIFEST_NAME
    path = path if path.is_file() else bundle.root  # another tool's folder has no manifest
    return _written(datetime.fromtimestamp(path.stat().st_mtime, UTC))


def _expires_at(served: Served, resident: Resident) -> str:
    if served.keep_alive_s is None:
        return _NEVER
    left_s = max(0.0, served.keep_alive_s - resident.idle_s())
    return _written(datetime.now(UTC) + timedelta(seconds=left_s))


def _written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _parameters(bundle: Bundle | None) -> Iterator[str]:
    if bundle is None:
        return
    for name, value in bundle.manifest.generation.model_dump(exclude_none=True).items():
        told = "repeat_penalty" if name == "repetition_penalty" else name
        yield f"{told:<30} {value}"


def _model_info(served: Served, bundle: Bundle | None) -> dict[str, Any]:
    if bundle is None:
        return {"general.basename": served.name}
    manifest = bundle.manifest
    shape, kind = manifest.architecture, manifest.architecture.model_type
    info: dict[str, Any] = {
        "general.architecture": kind,
        "general.basename": manifest.name,
        "general.parameter_count": shape.num_parameters,
        f"{kind}.context_length": served.context_tokens or manifest.context_tokens,
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
