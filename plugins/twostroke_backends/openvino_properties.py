"""OpenVINO's options in our words and its own properties, which depend on processor and graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.backends.capabilities import SessionMemory
from twostroke.backends.ort import Option
from twostroke.bundle.graph_weights import read_weights
from twostroke.source import cache_root
from twostroke_backends import cpu_facts
from twostroke_backends.plugin_ep_library import EpDevice

_GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_OWN_GROUP, _WIDEST_GROUP = 32, 128  # its default; wider than that cost accuracy, and soon time

SESSION_MEMORY = SessionMemory(code_bytes=32 * 2**20, maps_weights=True, row_copies=3.3)
"""As measured with the demo model: what a session holds for the longest row it ran is inputs,
outputs and keys and values in the order of its kernels."""

OPTIONS = (
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


def translate(device: EpDevice, options: Mapping[str, Any]) -> dict[str, str]:
    """OpenVINO's properties; its plugin reads them from `load_config` and ignores all else."""
    place = device.metadata.get("ov_device", device.hardware.upper())  # e.g. GPU.1
    is_cpu = device.hardware == "cpu"
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": options["performance_hint"].upper(),
        "NUM_STREAMS": str(options["num_streams"]),
    }
    precision = options["inference_precision"]
    if precision is None and is_cpu and not _has_amx():
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


def for_graph(options: Mapping[str, str], graph: Path) -> dict[str, str]:
    """Has activations quantised in groups as wide as the blocks of the graph's weights.

    OpenVINO's processor plugin multiplies quantised weights in int8 where a group of activations
    lies within a block, and in floats otherwise; its own width is 32. Fewer, wider groups take
    less time. Processors with AMX multiply in bf16 and are left alone.
    """
    config = json.loads(options["load_config"])
    properties = config.get("CPU")
    if properties is None or _GROUP_SIZE in properties or _has_amx():
        return dict(options)
    sizes = {
        reader.numbers.get("block_size", 0)
        for tensor in read_weights(graph)
        for reader in tensor.readers
        if reader.operator == "DequantizeLinear"
    }
    if not sizes or min(sizes) <= _OWN_GROUP:
        return dict(options)
    properties[_GROUP_SIZE] = str(min(*sizes, _WIDEST_GROUP))
    return {**options, "load_config": json.dumps(config)}


def chunk_tokens() -> int:
    """The length of a prompt's pieces that OpenVINO reads best.

    Short ones compare fewer pairs of tokens that do not see each other, and their values fit the
    caches; with AMX what products of few rows lose is more (docs/placement.md).
    """
    return 512 if _has_amx() else 256


def _has_amx() -> bool:
    return "amx_bf16" in cpu_facts.instruction_sets()
