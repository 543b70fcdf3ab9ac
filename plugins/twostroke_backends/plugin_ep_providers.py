"""What is known of single plugin execution providers: dialect, options, advice.

Providers take options as texts and do little to check them: an unknown one is ignored, ends with a
C++ exception's text, or has the session made without the provider. So each known provider has a
table of its options here, and a function that puts the checked ones in its own words. Options of
unknown providers are handed on as they stand, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke.backends.capabilities import SessionMemory
from twostroke.backends.ort import Option, check_options
from twostroke.errors import BackendError
from twostroke_backends import openvino_properties
from twostroke_backends.plugin_ep_library import EpDevice

_log = logging.getLogger(__name__)

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Provider:
    """What is known of an execution provider.

    `translate` takes checked options and answers the provider's own. `dialect` is the one of the
    graphs that it takes whole. `prefill_chunk_tokens`: the length of a prompt's pieces that it
    computes best; None: not known. `for_graph` answers the options (its own, as `translate` made
    them) of one graph, where they depend on it. `session_memory`: on a processor.
    """

    name: str
    dialect: str
    options: tuple[Option, ...]
    translate: Callable[[EpDevice, Options], dict[str, str]]
    prefill_chunk_tokens: int | None = None
    session_memory: SessionMemory | None = None
    for_graph: Callable[[Mapping[str, str], Path], dict[str, str]] | None = None


_WEBGPU = (
    Option(
        "validation_mode",
        str,
        "checks of each command",
        choices=("disabled", "wgpuOnly", "basic", "full"),
    ),
    Option(
        "power_preference",
        str,
        "which GPU, where there are several",
        choices=("high-performance", "low-power"),
    ),
    Option("dawn_backend_type", str, "the graphics interface below", choices=("Vulkan", "D3D12")),
    Option(
        "storage_buffer_cache_mode",
        str,
        "what becomes of buffers that are free",
        choices=("disabled", "lazyRelease", "simple", "bucket"),
    ),
    Option("enable_matmul_fp32_accumulation", bool, "sum products of halves in float32"),
)


def _webgpu(device: EpDevice, options: Options) -> dict[str, str]:
    return {
        f"ep.webgpuexecutionprovider.{_camel(name)}": _text(value)
        for name, value in options.items()
        if value is not None
    }


_TENSORRT_RTX = (
    Option("enable_cuda_graph", bool, "replay a run's launches"),
    Option("nv_max_workspace_size", int, "bytes that building an engine may take", low=0),
    Option("nv_max_shared_mem_size", int, "bytes of shared memory a kernel may take", low=0),
    Option("nv_profile_min_shapes", str, "smallest shapes, as NAME:1x1,…"),
    Option("nv_profile_opt_shapes", str, "shapes to tune for, as NAME:1x512,…"),
    Option("nv_profile_max_shapes", str, "largest shapes, as NAME:1x8192,…"),
    Option("nv_multi_profile_enable", bool, "several ranges of shapes"),
    Option("nv_runtime_cache_path", str, "a folder for compiled kernels"),
    Option("nv_detailed_build_log", bool, "tell what building an engine does"),
)


def _as_they_stand(device: EpDevice, options: Options) -> dict[str, str]:
    return {name: _text(value) for name, value in options.items() if value is not None}


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            "OpenVINOExecutionProvider",
            "standard",
            openvino_properties.OPTIONS,
            openvino_properties.translate,
            prefill_chunk_tokens=openvino_properties.chunk_tokens(),
            session_memory=openvino_properties.SESSION_MEMORY,
            for_graph=openvino_properties.for_graph,
        ),
        Provider("WebGpuExecutionProvider", "fused", _WEBGPU, _webgpu),
        Provider("NvTensorRTRTXExecutionProvider", "standard", _TENSORRT_RTX, _as_they_stand),
    )
}
"""The known providers by name."""


def known_provider(name: str) -> Provider | None:
    """What is known of a provider, or of one that chooses among its devices (`….AUTO`)."""
    return PROVIDERS.get(name.split(".")[0])


def provider_options(backend: str, device: EpDevice, given: Options) -> dict[str, str]:
    """A provider's options in its own words, checked where the provider is known.

    Of others any name and any plain value is handed on, with a warning.

    Raises:
        BackendError: an unknown option (names the allowed ones) or a bad value.
    """
    known = known_provider(device.provider)
    if known is not None:
        return known.translate(device, check_options(backend, given, known.options))
    for name, value in given.items():
        if not isinstance(value, str | int | float) or value != value:
            raise BackendError(
                f"The backend {backend!r}: the provider's option {name!r} must be a text, a "
                f"number, true or false, not {value!r}."
            )
    if given:
        _log.warning(
            "the options %s go to %s unchecked: twostroke does not know this provider's",
            ", ".join(map(str, given)),
            device.provider,
        )
    return {str(name): _text(value) for name, value in given.items()}


def options_for_graph(provider: str, options: Mapping[str, str], graph: Path) -> dict[str, str]:
    """A provider's options, as `provider_options` made them, for the session of one graph."""
    known = known_provider(provider)
    if known is None or known.for_graph is None:
        return dict(options)
    return known.for_graph(options, graph)


def _text(value: Any) -> str:
    """A value as providers read it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
