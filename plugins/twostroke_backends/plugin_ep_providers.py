"""What is known of single plugin execution providers: dialect, options, advice.

Providers take options as texts and do little to check them: an unknown one is ignored, ends with a
C++ exception's text, or has the session made without the provider. So each known provider has a
table of its options here, and a function that puts the checked ones in its own words. Options of
unknown providers are handed on as they stand, and a warning says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.backends.ort import Option, check_options
from twostroke.errors import BackendError
from twostroke.source import cache_root
from twostroke_backends import cpu_facts
from twostroke_backends.plugin_ep_library import EpDevice

_log = logging.getLogger(__name__)

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Provider:
    """What is known of an execution provider.

    `translate` takes checked options and answers the provider's own. `dialect` is the one of the
    graphs that it takes whole. `prefill_chunk_tokens`: the length of a prompt's pieces that it
    computes best; None: not known.
    """

    name: str
    dialect: str
    options: tuple[Option, ...]
    translate: Callable[[EpDevice, Options], dict[str, str]]
    prefill_chunk_tokens: int | None = None


OPENVINO = (
    Option(
        "inference_precision",
        str,
        "floats that products are computed in; f32 is the exact one",
        choices=("f32", "bf16", "f16"),
    ),
    Option("threads", int, "threads of a run, on the CPU", low=1, high=1024),
    Option("num_streams", int, "runs that may be in progress at once", 1, low=1, high=1024),
    Option(
        "performance_hint",
        str,
        "what compiling aims at",
        "latency",
        choices=("latency", "throughput", "cumulative_throughput"),
    ),
    Option("pin_threads", bool, "bind the threads to processors, on the CPU"),
    Option("cache", bool, "keep compiled graphs in the cache folder", True),
    Option("properties", dict, "further properties, by OpenVINO's own names"),
)


def _openvino(device: EpDevice, options: Options) -> dict[str, str]:
    """OpenVINO's properties; its plugin reads them from `load_config` and ignores all else."""
    place = device.metadata.get("ov_device", device.hardware.upper())  # e.g. GPU.1
    is_cpu = device.hardware == "cpu"
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": options["performance_hint"].upper(),
        "NUM_STREAMS": str(options["num_streams"]),
    }
    precision = options["inference_precision"]
    if precision is None and is_cpu and "amx_bf16" not in cpu_facts.instruction_sets():
        precision = "f32"  # OpenVINO would take bf16 for AVX-512 too: slower there and less exact
    if precision is not None:
        properties["INFERENCE_PRECISION_HINT"] = precision
    if is_cpu:
        threads = options["threads"] or cpu_facts.num_usable_threads()
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    if options["pin_threads"] is not None:
        properties["ENABLE_CPU_PINNING"] = "YES" if options["pin_threads"] else "NO"
    if options["cache"]:
        properties["CACHE_DIR"] = str(cache_root() / "openvino")
    properties.update(options["properties"] or {})
    return {"load_config": json.dumps({place: properties})}


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
        Provider("OpenVINOExecutionProvider", "standard", OPENVINO, _openvino, 512),
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


def _text(value: Any) -> str:
    """A value as providers read it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
