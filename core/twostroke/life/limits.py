"""What a device can do at most: bytes read and operations done in a second.

Both bounds of the roofline (Williams, Waterman and Patterson, "Roofline", 2009). They are measured
once on the CPU, in about two seconds, and kept in the cache folder for this kind of processor,
number of threads and ONNX Runtime. Other devices say what they know themselves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from twostroke.backends.protocol import Backend, Binding, Device
from twostroke.errors import TwostrokeError
from twostroke.life.free_memory import free_memory_bytes
from twostroke.life.limit_graphs import product_graph
from twostroke.life.run_times import RunTimes, time_runs
from twostroke.source import cache_root
from twostroke.types import Stroke

log = logging.getLogger(__name__)

_FORMAT = 1  # raised when something else is measured
_SIDE = 2048  # of the matrices that are multiplied: larger than a core's cache
_LEAST_READ_BYTES = 256 * 2**20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_OPERATORS = {  # operator, dtype of a, of the weights, of y
    "fp32": ("MatMul", "float32", "float32", "float32"),
    "int8": ("MatMulInteger", "uint8", "int8", "int32"),
}


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The bounds of one device; None where they are not known.

    `fp32_ops_per_s` and `int8_ops_per_s` count a multiplication and an addition as two.
    `was_busy`: something else ran while they were measured, so that they are measured again.
    """

    read_bytes_per_s: float | None = None
    fp32_ops_per_s: float | None = None
    int8_ops_per_s: float | None = None
    was_busy: bool = False

    def ops_per_s(self, precision: str) -> float | None:
        """The peak of a graph of that precision: weights of 8 and 4 bits are multiplied in int8."""
        is_int8 = precision in ("int8", "int4", "mixed")
        return self.int8_ops_per_s if is_int8 else self.fp32_ops_per_s

    def sentence(self) -> str:
        """E.g. `reads 23 GB/s, multiplies 317 GFLOP/s in fp32 and 1900 GOP/s in int8`."""
        words = []
        if self.read_bytes_per_s:
            words.append(f"reads {self.read_bytes_per_s / 1e9:.0f} GB/s")
        if self.fp32_ops_per_s and self.int8_ops_per_s:
            words.append(
                f"multiplies {self.fp32_ops_per_s / 1e9:.0f} GFLOP/s in fp32 and "
                f"{self.int8_ops_per_s / 1e9:.0f} GOP/s in int8"
            )
        if not words:
            return "its limits are not known"
        busy = " (measured while the machine was busy)" if self.was_busy else ""
        return ", ".join(words) + busy


def device_limits(backend: Backend) -> DeviceLimits:
    """What `backend`'s device can do: as kept, else measured and kept; a few seconds at most.

    Only host processors are measured; of others the bandwidth is what the plugin says.
    Where it cannot be measured the limits are unknown, and why is logged.
    """
    device = backend.device
    if device.kind != "cpu":
        return DeviceLimits(read_bytes_per_s=device.bandwidth_bytes_per_s)
    kept = kept_limits(backend.name, device)
    if kept is not None and not kept.was_busy:
        return kept
    try:
        found = measure(backend)
    except (TwostrokeError, MemoryError, OSError) as error:
        log.warning("the limits of %s could not be measured: %s", device.name, error)
        return kept or DeviceLimits(read_bytes_per_s=device.bandwidth_bytes_per_s)
    if kept is not None:
        found = _better(kept, found)
    _keep(_file(backend.name, device), found)
    return found


def known_limits(backend: Backend) -> DeviceLimits:
    """What is known of `backend`'s device without measuring anything."""
    told = DeviceLimits(read_bytes_per_s=backend.device.bandwidth_bytes_per_s)
    if backend.device.kind != "cpu":
        return told
    return kept_limits(backend.name, backend.device) or told


def measure_once(backend: Backend) -> None:
    """Measures a device of which nothing is kept yet, in about two seconds.

    What cannot be measured stays unknown, and why is logged.
    """
    if backend.device.kind == "cpu" and kept_limits(backend.name, backend.device) is None:
        log.info("measuring what %s can do, once", backend.device.name)
        device_limits(backend)


def kept_limits(backend_name: str, device: Device) -> DeviceLimits | None:
    """What was measured before on this device; None where nothing was."""
    try:
        content = json.loads(_file(backend_name, device).read_text(encoding="utf-8"))
        limits = DeviceLimits(**content)
    except (OSError, ValueError, TypeError):
        return None
    numbers = [getattr(limits, field.name) for field in fields(DeviceLimits)]
    is_sound = all(n is None or (isinstance(n, int | float) and n >= 0) for n in numbers)
    return limits if is_sound else None


def measure(backend: Backend) -> DeviceLimits:
    """Measures memory and matrix products with all threads; the best of several runs.

    Raises:
        TwostrokeError: the backend cannot run the products.
    """
    num_threads = int(backend.device.details.get("threads", 0)) or os.cpu_count() or 1
    was_busy = _others_run(num_threads)
    peaks = {precision: _products(backend, precision) for precision in _OPERATORS}
    num_bytes, reads = _reads(num_threads)
    is_steady = reads.is_steady and all(times.is_steady for times in peaks.values())
    ops = {precision: _num_ops() / times.fastest_s for precision, times in peaks.items()}
    return DeviceLimits(
        num_bytes / reads.fastest_s, ops["fp32"], ops["int8"], was_busy or not is_steady
    )


def _num_ops() -> float:
    """Multiplications and additions of one product."""
    return 2.0 * (_SIDE // 2) * _SIDE * _SIDE


def _reads(num_threads: int) -> tuple[int, RunTimes]:
    """Passes over more memory than the caches hold, a part for each thread; its bytes."""
    wanted = max(_LEAST_READ_BYTES, 2 * _cache_bytes())
    num_bytes = min(wanted, free_memory_bytes() // 4)
    memory = np.ones(num_bytes // 4, np.float32)  # written, or every page would be the same one
    parts = np.array_split(memory, num_threads)
    with ThreadPoolExecutor(num_threads) as pool:  # numpy lets go of the GIL in a reduction
        return memory.nbytes, time_runs(lambda: list(pool.map(np.max, parts)))


def _products(backend: Backend, precision: str) -> RunTimes:
    operator, *dtypes = _OPERATORS[precision]
    left, right, out = dtypes
    rows = _SIDE // 2
    weights = np.ones((_SIDE, _SIDE), np.dtype(right))
    with tempfile.TemporaryDirectory(prefix="twostroke-limits-") as folder:
        graph = Path(folder, f"{precision}.onnx")
        graph.write_bytes(product_graph(operator, rows, weights, (left, out)))
        session = backend.open_session(graph, Stroke.PREFILL)
        try:
            a = backend.allocate((rows, _SIDE), left, on_host=True)
            a.write(np.ones(a.shape, np.dtype(left)))
            y = backend.allocate((rows, _SIDE), out, on_host=True)
            binding: Binding = session.bind({"a": a}, {"y": y})
            return time_runs(binding.run)
        finally:
            session.close()


def _cache_bytes() -> int:
    """The largest cache of the first processor; 0 where the system does not tell."""
    sizes = [0]
    for path in _CACHES.glob("index*/size"):
        with suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
            unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes)


def _others_run(num_threads: int) -> bool:
    """Whether the machine is so busy that a measurement says less than it can do."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5 * num_threads


def _better(one: DeviceLimits, other: DeviceLimits) -> DeviceLimits:
    """The higher of two measurements, number by number: nothing is faster than it can be."""
    return DeviceLimits(
        max(one.read_bytes_per_s or 0, other.read_bytes_per_s or 0) or None,
        max(one.fp32_ops_per_s or 0, other.fp32_ops_per_s or 0) or None,
        max(one.int8_ops_per_s or 0, other.int8_ops_per_s or 0) or None,
        other.was_busy,
    )


def _file(backend_name: str, device: Device) -> Path:
    from twostroke.install import installed_runtimes

    facts = [
        _FORMAT,
        backend_name,
        device.name,
        sorted(device.details.items()),
        [str(runtime) for runtime in installed_runtimes()],
    ]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_root() / "limits" / f"{backend_name}-{key}.json"


def _keep(path: Path, limits: DeviceLimits) -> None:
    """Writes it whole or not at all; a cache that cannot be written only costs the time again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(limits), file)
        Path(file.name).replace(path)
    except OSError as error:
        log.info("the limits of this device are not kept: %s", error)
