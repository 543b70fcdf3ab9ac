"""Intel's processors, GPUs and NPUs, through OpenVINO's plugin for ONNX Runtime.

The backend `plugin_ep` with the package, the dialect and the options of OpenVINO set, so that the
YAML says one word. It reads prompts faster than ONNX Runtime's own kernels and decodes slower: a
place for prefill beside a decode on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twostroke.backends import BackendSpec, Device, ProbeResult, hookimpl
from twostroke.backends.capabilities import READS_FASTER
from twostroke.backends.ort import check_options
from twostroke.errors import BackendError, TwostrokeError
from twostroke.types import Stroke
from twostroke_backends import cpu_facts, openvino_properties
from twostroke_backends.kernels import Kernels, find_kernels
from twostroke_backends.plugin_ep import PluginEpBackend
from twostroke_backends.plugin_ep_devices import HARDWARE, METADATA, choose, device_facts
from twostroke_backends.plugin_ep_library import (
    EpDevice,
    ProviderLibrary,
    open_package,
    released_on_error,
)
from twostroke_backends.plugin_ep_providers import PROVIDERS

NAME = "openvino"
PACKAGE = "onnxruntime_ep_openvino"
OPTIONS = (HARDWARE, METADATA, *openvino_properties.OPTIONS)
_FAST_WITH = {"avx512_vnni", "amx_int8"}
_FASTER_THAN_KERNELS_WITH = {"amx_int8"}
_GAIN = "OpenVINO would read prompts faster on this processor (docs/placement.md)."
_PROVIDER = PROVIDERS["OpenVINOExecutionProvider"]


def probe() -> ProbeResult:
    """OpenVINO's devices, or why there is none."""
    try:
        library = open_package(PACKAGE, NAME)
    except TwostrokeError as error:
        return ProbeResult(
            reason=f'{error} OpenVINO: `pip install "twostroke[openvino]"`.',
            would_bring=_GAIN if _reads_faster() else "",
        )
    except Exception as error:  # a probe never raises
        return ProbeResult(reason=f"asking OpenVINO for its devices failed: {error}")
    try:
        found = tuple(
            _praised(device_facts(device, index, _PROVIDER.prefill_chunk_tokens))
            for index, device in enumerate(library.devices)
        )
    finally:
        library.release()
    return ProbeResult(found, "" if found else "OpenVINO finds no device that it can use.")


def _reads_faster() -> bool:
    """Whether OpenVINO was found to read prompts faster on such a processor; see docs/placement.md.

    Measured on Intel's with VNNI, and with AMX; nothing is known of others. Where twostroke's own
    kernels are installed, the CPU backend reads as fast without AMX, and needs no second copy.
    """
    is_intel = "intel" in cpu_facts.cpu_name().casefold()
    has_kernels = isinstance(find_kernels(), Kernels)
    wanted = _FASTER_THAN_KERNELS_WITH if has_kernels else _FAST_WITH
    return is_intel and bool(wanted & set(cpu_facts.instruction_sets()))


def _praised(device: Device) -> Device:
    if device.kind != "cpu" or not _reads_faster():
        return device
    return replace(device, capabilities=device.capabilities | {READS_FASTER})


def _open(device: Device, options: Mapping[str, Any]) -> PluginEpBackend:
    """Opens a device of the probe, or the one that the options choose.

    Raises:
        BackendError: bad options, or not exactly one device.
        BackendUnavailableError: the package is gone or broken.
    """
    checked = check_options(NAME, options, OPTIONS)
    library = open_package(PACKAGE, NAME)
    with released_on_error(library):
        index = _index(library, device, checked["hardware"], checked["metadata"])
        found = library.devices[index]
        return PluginEpBackend(NAME, library, found, _PROVIDER.translate(found, checked), index)


def _index(
    library: ProviderLibrary,
    device: Device,
    hardware: str | None,
    metadata: Mapping[str, Any] | None,
) -> int:
    """Which of the library's devices: `device` by its index, unless the options choose."""
    devices: tuple[EpDevice, ...] = library.devices
    if hardware is None and metadata is None:
        return device.index
    chosen = devices.index(choose(library, NAME, hardware=hardware, metadata=metadata))
    if device.index not in (0, chosen):
        raise BackendError(
            f"The backend {NAME!r}: `device: {device.index}` is {device.name}, but the options "
            f"choose device {chosen}, {devices[chosen].name}. Leave one of them out."
        )
    return chosen


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """Taken where the YAML names it; `auto` prefers the CPU's own kernels."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="Intel processors, GPUs and NPUs, through OpenVINO; made for prefill",
            probe=probe,
            open=_open,
            priority=-10,
            dialect={Stroke.PREFILL: "standard", Stroke.DECODE: "standard"},
            threads_option="threads",
        )
    ]
