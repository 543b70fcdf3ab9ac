"""A whole backend in one file: the CPU on one thread that never spins.

It stands on `twostroke.backends.ort`, as any backend over ONNX Runtime can. For new hardware,
change `probe`, the provider's name and, where the device has memory of its own, `allocate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import BackendSpec, Buffer, Device, ProbeResult, hookimpl
from twostroke.backends.ort import (
    CPU_PROVIDER,
    Option,
    OrtSession,
    allocate_host,
    check_options,
    load_session,
    onnxruntime,
    prove_placement,
)
from twostroke.errors import TwostrokeError
from twostroke.types import Stroke

NAME = "coolcpu"
OPTIONS = (Option("threads", int, "threads an operator uses", default=1, low=1, high=4),)


def probe() -> ProbeResult:
    """Which devices are there, or in one sentence why none is. Never raises."""
    try:
        onnxruntime()
    except TwostrokeError as error:
        return ProbeResult(reason=str(error))
    return ProbeResult((Device(index=0, name="the CPU, kept cool", kind="cpu"),))


class CoolBackend:
    """An open device: it makes buffers and sessions."""

    name = NAME
    has_row_views = True  # host memory can be sliced
    touches_lazily = True  # and costs nothing before it is written

    def __init__(self, device: Device, options: Mapping[str, Any]) -> None:
        self.device = device
        self.options = check_options(NAME, options, OPTIONS)

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros. A device with memory of its own gives host memory only where `on_host` asks."""
        return allocate_host(shape, dtype)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph and proves where it runs."""
        options = onnxruntime().SessionOptions()
        options.intra_op_num_threads = self.options["threads"]
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = load_session(graph, CPU_PROVIDER, {}, options)
        prove_placement(session.placement, graph.name, NAME, "Reinstall onnxruntime.")
        return session

    def close(self) -> None:
        """Nothing to free."""


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """What this package brings."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="the CPU on one thread that never spins",
            probe=probe,
            open=CoolBackend,
            priority=-10,  # `backend: auto` takes the ordinary CPU before this one
        )
    ]
