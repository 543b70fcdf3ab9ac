"""The CPU, through ONNX Runtime's CPUExecutionProvider. Works everywhere."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import (
    HOST_MEMORY,
    BackendSpec,
    Buffer,
    Device,
    ProbeResult,
    hookimpl,
)
from twostroke.backends.ort import (
    CPU_PROVIDER,
    HostBuffer,
    Option,
    OrtSession,
    Threads,
    allocate_host,
    check_options,
    join_shared_threads,
    load_session,
    num_shared_threads,
    onnxruntime,
    prove_placement,
)
from twostroke.bundle.manifest import graph_file
from twostroke.errors import BackendError, BundleError, InstallError
from twostroke.install import check_install
from twostroke.life.weights import MLAS_BLOCK_BYTES
from twostroke.types import Stroke
from twostroke_backends import cpu_facts, prepacked
from twostroke_backends.kernels import Kernels, find_kernels

NAME = "cpu"
_log = logging.getLogger(__name__)
OPTIONS = (
    Option("intra_op_threads", int, "threads an operator uses", low=1, high=1024),
    Option("spinning", bool, "threads wait actively within a run: faster, costs power", True),
    Option("share_weights", bool, "keep both graphs' packed weights once, in a cache file", True),
    Option(
        "kernels",
        str,
        "twostroke's own matrix products (package twostroke-kernels): auto takes them where they "
        "are installed",
        "auto",
        choices=("off", "auto", "require"),
    ),
    Option(
        "optimization",
        str,
        "how much ONNX Runtime rewrites the graph",
        "all",
        choices=("none", "basic", "extended", "all"),
    ),
)
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def probe() -> ProbeResult:
    """The one CPU, or why ONNX Runtime cannot be used."""
    try:
        check_install()
    except InstallError as error:
        return ProbeResult(reason=str(error))
    details = {
        "instruction_sets": " ".join(cpu_facts.instruction_sets()) or "unknown",
        "threads": str(cpu_facts.num_usable_threads()),
        "kernels": kernels.isa if isinstance(kernels := find_kernels(), Kernels) else kernels,
    }
    device = Device(
        index=0,
        name=cpu_facts.cpu_name(),
        kind="cpu",
        memory_bytes=cpu_facts.memory_bytes(),
        dtypes=frozenset({"float32", "float16"}),
        details=details,
    )
    return ProbeResult((device,))


class CpuBackend:
    """Sessions on the CPU over numpy's memory."""

    name = NAME
    has_row_views = True
    touches_lazily = True
    memory_space = HOST_MEMORY

    def __init__(self, device: Device, options: Mapping[str, Any]) -> None:
        """Checks the options; loads nothing yet.

        Raises:
            BackendError: an unknown option or a bad value, or one that the threads which this
                process shares cannot follow.
            InstallError: not exactly one ONNX Runtime.
        """
        self.device = device
        if options.get("kernels") is False:  # how YAML reads a plain `off`
            options = {**options, "kernels": "off"}
        self.options = check_options(NAME, options, OPTIONS)
        _check_threads(self.options)
        self._kernels = _kernels(self.options)
        # The kernel that runs otherwise is up to 1.7 times slower in prefill and never faster in
        # decode on the machines measured. Read by ONNX Runtime when a session is made.
        os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
        onnxruntime()
        # The pool that sessions join from now on; one that comes later is not theirs.
        self._num_shared = num_shared_threads()

    @property
    def threads(self) -> Threads:
        """What operators run in: the process's pool where it has one, else the session's own."""
        if self._num_shared is not None:
            return Threads(self._num_shared, is_shared=True)
        own = self.options["intra_op_threads"] or cpu_facts.num_usable_threads()
        return Threads(own, is_shared=False)

    @property
    def shares_packed_weights(self) -> bool:
        """Whether both graphs of a bundle map one file of packed weights."""
        return bool(self.options["share_weights"])

    @property
    def packed_block_bytes(self) -> int:
        """Of a block of weights beside its values: a scale; ONNX Runtime keeps a sum as well."""
        return MLAS_BLOCK_BYTES if self._kernels is None else 4

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros in host memory; `on_host` changes nothing here."""
        return allocate_host(shape, dtype)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph, from the cache of packed weights where its bundle allows it.

        Raises:
            BackendError: the kernels are required, and the graph can't be packed for them.
            PlacementError: nodes landed on another provider.
            BundleError: the graph cannot be loaded.
        """
        not_packed = None
        whole = Path(graph_file(stroke, "standard")).stem  # its halves have longer names
        is_standard = graph.name.startswith(f"{whole}.")
        make_options = functools.partial(self.session_options, is_standard=is_standard)
        try:
            session = self._from_cache(graph, make_options, None if is_standard else self._kernels)
        except prepacked.NotPackedError as error:
            if self.options["kernels"] == "require":
                raise BackendError(f"kernels: require cannot be had, because {error}.") from error
            session, not_packed = None, error
        if session is None:
            session = load_session(graph, CPU_PROVIDER, {}, make_options())
        if not_packed is not None:  # told only now: a graph that cannot be loaded says more
            _log.warning("%s", not_packed)
        prove_placement(
            session.placement,
            graph.name,
            NAME,
            "Reinstall onnxruntime; it lacks its own CPU provider.",
        )
        prepacked.give_memory_back()
        return session

    def session_options(self, optimization: str | None = None, *, is_standard: bool = False) -> Any:
        """Fresh SessionOptions as the options of this backend say.

        With `is_standard`, quantised weights of plain operators become floats when the session is
        made: that takes the memory of fp32, but not a multiple of the time at every step.
        """
        runtime = onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors; warnings about graphs are not for users
        level = _LEVELS[optimization or self.options["optimization"]]
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
        options.intra_op_num_threads = self.threads.num_threads
        options.inter_op_num_threads = 1
        join_shared_threads(options)
        if self._kernels is not None:
            self._kernels.register(options)
        spinning = "1" if self.options["spinning"] else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        # Threads that still spin after a prefill would take the cores from the decode step that
        # follows, and double its time.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if is_standard:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        return options

    def close(self) -> None:
        """Nothing to free: memory goes with the last buffer and session."""

    def _from_cache(
        self, graph: Path, make_options: Callable[[], Any], kernels: Kernels | None
    ) -> OrtSession | None:
        """The session of the packed graph; None where there is none to be had."""
        if not self.options["share_weights"]:
            return None
        level = self.options["optimization"]
        packed = prepacked.packed_graph(graph, level, make_options, kernels)
        if packed is None:
            return None
        try:
            return load_session(packed, CPU_PROVIDER, {}, self.session_options("none"))
        except BundleError as error:  # removed meanwhile, or not what this runtime writes
            _log.warning("%s The bundle's own graph is loaded instead.", error)
            prepacked.discard(packed.parent)
            return None


def _kernels(options: Mapping[str, Any]) -> Kernels | None:
    """The kernels that sessions are to run on, as the options say.

    Raises:
        BackendError: they are required and are not to be had.
    """
    if options["kernels"] == "off":
        return None
    found: Kernels | str = find_kernels()
    if isinstance(found, Kernels) and not options["share_weights"]:
        found = "share_weights: false leaves no file that their packed weights could lie in"
    if isinstance(found, Kernels):
        return found
    if options["kernels"] == "require":
        raise BackendError(f"kernels: require cannot be had, because {found}.")
    return None


def _check_threads(options: Mapping[str, Any]) -> None:
    """Refuses what only threads of a session's own could do.

    Raises:
        BackendError: it asks for another number of threads than the process shares, or for threads
            that never spin.
    """
    shared, own = num_shared_threads(), options["intra_op_threads"]
    if shared is None or (own in (None, shared) and options["spinning"]):
        return
    asked = "spinning: false" if not options["spinning"] else f"intra_op_threads: {own}"
    raise BackendError(
        f"The backend {NAME!r} cannot take {asked}: all sessions of this process share a pool of "
        f"{shared} threads, which spin within a run. Leave the option out, or open the model in a "
        "process of its own."
    )


def _open(device: Device, options: Mapping[str, Any]) -> CpuBackend:
    return CpuBackend(device, options)


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """The CPU, always the last resort."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="any processor, through ONNX Runtime's CPU provider",
            probe=probe,
            open=_open,
            priority=0,
            threads_option="intra_op_threads",
            shares_threads=True,
        )
    ]


__all__ = ["OPTIONS", "CpuBackend", "HostBuffer", "probe", "twostroke_backends"]
