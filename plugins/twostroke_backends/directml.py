"""Any DirectX 12 GPU on Windows, through ONNX Runtime's DmlExecutionProvider.

Its rules (onnxruntime.ai, "DirectML Execution Provider"): no memory pattern, sequential execution,
one run at a time in a session. Its memory is an opaque handle, so there are no row views.

It runs graphs of the standard dialect. Its kernel of GroupQueryAttention takes neither packed
queries nor the rotation inside, and reads each chunk of a prompt as if nothing stood before it
(onnxruntime, DmlOperatorGroupQueryAttention.cpp): fused graphs would answer wrongly, so they are
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import BackendSpec, Buffer, Device, ProbeResult, hookimpl
from twostroke.backends.ort import (
    Option,
    OrtSession,
    OrtValueBuffer,
    allocate_host,
    check_options,
    load_session,
    onnxruntime,
    prove_placement,
)
from twostroke.bundle.graph_header import read_header
from twostroke.errors import PlacementError
from twostroke.install import installed_runtimes
from twostroke.types import Stroke

NAME = "directml"
PROVIDER = "DmlExecutionProvider"
_FUSED_ATTENTION = "GroupQueryAttention"
OPTIONS = (
    Option(
        "performance_preference",
        str,
        "which adapter Windows should prefer",
        "default",
        choices=("default", "high_performance", "minimum_power"),
    ),
    Option("disable_metacommands", bool, "keep the driver's own kernels out", False),
)


def probe() -> ProbeResult:
    """The adapters, or why there is none."""
    try:
        return find_adapters(sys.platform)
    except Exception as error:  # a probe never raises
        return ProbeResult(reason=str(error))


def find_adapters(platform: str) -> ProbeResult:
    """Adapters on a platform, named as in `sys.platform`."""
    if platform != "win32":
        return ProbeResult(reason="DirectML exists on Windows only.")
    runtime = onnxruntime()
    if PROVIDER not in runtime.get_available_providers():
        installed = " and ".join(map(str, installed_runtimes())) or "onnxruntime"
        return ProbeResult(
            reason=f"the installed {installed} has no DirectML: in an environment of its own, "
            f'`pip install "twostroke[directml]"`.'
        )
    names = [adapter_name(d) for d in runtime.get_ep_devices() if d.ep_name == PROVIDER]
    return ProbeResult(
        tuple(
            Device(index, name, "gpu", dtypes=frozenset({"float16", "float32"}))
            for index, name in enumerate(names or ["the default DirectX 12 adapter"])
        )
    )


def adapter_name(found: Any) -> str:
    """A readable name of one of ONNX Runtime's devices."""
    metadata = dict(found.device.metadata)
    return str(metadata.get("Description") or found.device.vendor or "DirectX 12 adapter")


class DirectMLBackend:
    """Sessions on one adapter."""

    name = NAME
    has_row_views = False
    touches_lazily = False

    def __init__(self, device: Device, options: Mapping[str, Any]) -> None:
        """Checks the options.

        Raises:
            BackendError: an unknown option or a bad value.
        """
        self.device = device
        self.options = check_options(NAME, options, OPTIONS)

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros on the adapter or in host memory.

        Raises:
            OutOfMemoryError: the adapter refuses the bytes.
        """
        if on_host:
            return allocate_host(shape, dtype)
        return OrtValueBuffer(shape, dtype, "dml", self.device.index)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph and proves that the adapter has it.

        Raises:
            PlacementError: nodes landed on the CPU, or the graph is of the fused dialect.
            BundleError: the graph cannot be loaded.
        """
        refuse_fused_attention(graph)
        session = load_session(
            graph,
            PROVIDER,
            self.provider_options(),
            session_options(),
            on_host=False,
            one_run_at_a_time=True,
        )
        try:
            prove_placement(
                session.placement, graph.name, NAME, "A newer Windows or GPU driver may know them."
            )
        except PlacementError:
            session.close()
            raise
        return session

    def provider_options(self) -> dict[str, str]:
        """The options in ONNX Runtime's words."""
        options = {"device_id": str(self.device.index)}
        if self.options["performance_preference"] != "default":
            options["performance_preference"] = self.options["performance_preference"]
        if self.options["disable_metacommands"]:
            options["disable_metacommands"] = "true"
        return options

    def close(self) -> None:
        """Nothing to free: memory goes with the last buffer and session."""


def refuse_fused_attention(graph: Path) -> None:
    """Refuses a graph whose attention DirectML would compute wrongly.

    Raises:
        PlacementError: says which graphs run instead.
        BundleError: the file is no graph.
    """
    if _FUSED_ATTENTION in read_header(graph).operators:
        raise PlacementError(
            f"{graph.name} reads its KV cache by {_FUSED_ATTENTION}, which DirectML computes "
            "differently from other providers: export the model with `--dialect standard`, and set "
            "no other dialect for this backend.",
            backend=NAME,
        )


def session_options() -> Any:
    """Fresh SessionOptions that keep DirectML's rules."""
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    return options


def _open(device: Device, options: Mapping[str, Any]) -> DirectMLBackend:
    return DirectMLBackend(device, options)


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """DirectX 12 GPUs; preferred to the CPU where there is one."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="any DirectX 12 GPU on Windows, through ONNX Runtime's DirectML provider",
            probe=probe,
            open=_open,
            priority=50,
            dialect=dict.fromkeys(Stroke, "standard"),
        )
    ]
