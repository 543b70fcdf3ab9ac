"""Which device of a provider's library is meant: by provider, hardware and metadata."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from twostroke.backends import Device
from twostroke.backends.ort import Option
from twostroke.errors import BackendError
from twostroke_backends import cpu_facts
from twostroke_backends.plugin_ep_library import EpDevice, ProviderLibrary

HARDWARE = Option("hardware", str, "the kind of processor to run on", choices=("cpu", "gpu", "npu"))
METADATA = Option("metadata", dict, "what the device must say of itself, e.g. {ov_device: GPU.1}")
_MEMORY_KEYS = ("GPU_DEVICE_TOTAL_MEM_SIZE", "memory_bytes")
_DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}  # as OpenVINO tells them


def choose(
    library: ProviderLibrary,
    backend: str,
    *,
    provider: str | None = None,
    hardware: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> EpDevice:
    """The one device that fits all that is given; None fits every one.

    Without `provider` those that the package does not name are left out.

    Raises:
        BackendError: none fits, or several do; lists what was found.
    """
    everything = (*library.devices, *library.others)
    found = library.devices if provider is None else everything
    wanted = {key: str(value) for key, value in (metadata or {}).items()}
    fitting = [
        device
        for device in found
        if provider in (None, device.provider)
        and hardware in (None, device.hardware)
        and wanted.items() <= device.metadata.items()
    ]
    if len(fitting) == 1:
        return fitting[0]
    asked = _words(provider, hardware, wanted)
    listed = "; ".join(device.sentence() for device in fitting or everything) or "none"
    if not fitting:
        hint = _hint(provider, (device.provider for device in everything))
        raise BackendError(
            f"The backend {backend!r} finds no device{asked} in {library.path.name}.{hint} "
            f"Found: {listed}."
        )
    raise BackendError(
        f"The backend {backend!r} finds {len(fitting)} devices{asked}: {listed}. Name one of them "
        f"with the options `provider`, `hardware` or `metadata`."
    )


def device_facts(found: EpDevice, index: int, prefill_chunk_tokens: int | None = None) -> Device:
    """What twostroke says of a device; memory and dtypes where the provider tells them."""
    memory = next((found.metadata[key] for key in _MEMORY_KEYS if key in found.metadata), "")
    memory_bytes = int(memory) if memory.isdecimal() else None
    told = found.metadata.get("OPTIMIZATION_CAPABILITIES", "").split()
    details = {"provider": found.provider}
    if "version" in found.metadata:
        details["provider_version"] = found.metadata["version"]
    return Device(
        index=index,
        name=found.name,
        kind=found.hardware,
        memory_bytes=cpu_facts.memory_bytes() if found.hardware == "cpu" else memory_bytes,
        dtypes=frozenset(_DTYPES[word] for word in told if word in _DTYPES),
        details=details,
        prefill_chunk_tokens=prefill_chunk_tokens,
    )


def _words(provider: str | None, hardware: str | None, metadata: Mapping[str, str]) -> str:
    """E.g. ` with hardware gpu and metadata ov_device=GPU.1`."""
    words = [f"provider {provider}"] * (provider is not None)
    words += [f"hardware {hardware}"] * (hardware is not None)
    words += [f"metadata {key}={value}" for key, value in metadata.items()]
    return f" with {' and '.join(words)}" if words else ""


def _hint(provider: str | None, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(provider or "", list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near and near[0] != provider else ""
