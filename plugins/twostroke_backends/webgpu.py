"""GPUs with a Vulkan, Metal or DirectX 12 driver, through ONNX Runtime's WebGPU provider.

The provider is built into the distribution `onnxruntime-webgpu`, which needs an environment of its
own. The KV cache lies in the GPU's memory; token ids, lengths and logits stay in the host's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import BackendSpec, Buffer, Device, Placement, ProbeResult, hookimpl
from twostroke.backends.ort import (
    CPU_PROVIDER,
    Option,
    OrtSession,
    allocate_host,
    check_options,
    first_line,
    load_session,
    onnxruntime,
    prove_placement,
    read_placement,
)
from twostroke.bundle.graph_header import read_header
from twostroke.errors import BackendError, BackendUnavailableError, PlacementError, TwostrokeError
from twostroke.install import installed_runtimes
from twostroke.types import Stroke
from twostroke_backends.webgpu_attention import attention_error
from twostroke_backends.webgpu_memory import WebGpuBuffer, WebGpuMemory

NAME = "webgpu"
PROVIDER = "WebGpuExecutionProvider"
OPTIONS = (
    Option(
        "power_preference",
        str,
        "which GPU, where there are several",
        choices=("high-performance", "low-power"),
    ),
    Option(
        "validation_mode",
        str,
        "how much of each command the driver's layer checks",
        choices=("disabled", "wgpuOnly", "basic", "full"),
    ),
    Option(
        "storage_buffer_cache_mode",
        str,
        "what becomes of buffers that are free",
        choices=("disabled", "lazyRelease", "simple", "bucket"),
    ),
)
_WORDS = {
    "power_preference": "powerPreference",
    "validation_mode": "validationMode",
    "storage_buffer_cache_mode": "storageBufferCacheMode",
}
_ATTENTION = "GroupQueryAttention"
_MAX_ERROR = 1e-3


def probe() -> ProbeResult:
    """The GPU that WebGPU would take, or why there is none."""
    try:
        runtime = onnxruntime()
        if PROVIDER not in runtime.get_available_providers():
            installed = " and ".join(map(str, installed_runtimes())) or "onnxruntime"
            return ProbeResult(
                reason=f"the installed {installed} has no WebGPU: in an environment of its own, "
                f'`pip install "twostroke[webgpu]"`.'
            )
        WebGpuMemory({})
    except TwostrokeError as error:
        return ProbeResult(reason=str(error))
    except Exception as error:  # a probe never raises
        return ProbeResult(
            reason=f"WebGPU finds no GPU ({first_line(error).rstrip('.')}): install a driver for "
            f"Vulkan (Linux), DirectX 12 (Windows) or Metal (macOS)."
        )
    dtypes = frozenset({"float32", "float16"})
    return ProbeResult((Device(0, "the GPU that WebGPU takes", "gpu", dtypes=dtypes),))


class WebGpuBackend:
    """Sessions on one GPU, with the KV cache in its memory."""

    name = NAME
    has_row_views = False
    touches_lazily = False
    memory_space = "webgpu:0"

    def __init__(self, device: Device, options: Mapping[str, Any]) -> None:
        """Takes the GPU.

        Raises:
            BackendError: an unknown option or a bad value.
            BackendUnavailableError: there is no GPU that WebGPU can use.
        """
        self.device = device
        self.options = check_options(NAME, options, OPTIONS)
        try:
            self._memory: WebGpuMemory | None = WebGpuMemory(self.provider_options())
        except TwostrokeError:
            raise
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            raise BackendUnavailableError(
                f"The backend {NAME!r} cannot be used here: {first_line(error)}", backend=NAME
            ) from error

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros on the GPU, or in host memory that sessions copy from and to.

        Raises:
            OutOfMemoryError: the GPU refuses the bytes.
        """
        if on_host:
            return allocate_host(shape, dtype)
        if self._memory is None:
            raise BackendError(f"the backend {NAME!r} is closed")
        return WebGpuBuffer(self._memory, shape, dtype)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph, proves that the GPU has it, and tries its attention where it is fused.

        Raises:
            PlacementError: nodes landed on the CPU, or this GPU computes attention wrongly.
            BundleError: the graph cannot be loaded.
        """
        declared = read_header(graph).operators if graph.is_file() else Counter[str]()
        session = load_session(
            graph,
            PROVIDER,
            self.provider_options(),
            _session_options(),
            on_host=False,
            one_run_at_a_time=True,
            read=lambda opened, provider: placement_of(opened, provider, declared),
        )
        try:
            prove_placement(
                session.placement, graph.name, NAME, "A newer onnxruntime-webgpu may know them."
            )
            if _ATTENTION in declared:
                self._try_attention(graph.name, stroke)
        except PlacementError:
            session.close()
            raise
        return session

    def provider_options(self) -> dict[str, str]:
        """The options in ONNX Runtime's words."""
        return {
            f"ep.webgpuexecutionprovider.{_WORDS[name]}": value
            for name, value in self.options.items()
            if value is not None
        }

    def close(self) -> None:
        """Gives the GPU back, with the last buffer and session."""
        self._memory = None

    def _try_attention(self, graph: str, stroke: Stroke) -> None:
        """Refuses fused attention where this GPU's answer is wrong.

        The kernel for several tokens takes groups of threads (WebGPU's subgroups) to be 8 or more;
        drivers with smaller ones count some keys twice.

        Raises:
            PlacementError: names the dialect that is right.
        """
        num_new = 16 if stroke is Stroke.PREFILL else 1
        error = attention_error(num_new, PROVIDER, self.provider_options())
        if error > _MAX_ERROR:
            raise PlacementError(
                f"{graph} uses {_ATTENTION}, which this GPU computes wrongly for {num_new} tokens "
                f"at once (off by {error:.2g}): the kernel assumes larger groups of threads than "
                f"its driver has. Use the standard dialect for {stroke}: `twostroke export "
                f"--dialect both`, and `{stroke}: {{dialect: standard}}` in the YAML.",
                backend=NAME,
            )


def placement_of(session: Any, provider: str, declared: Mapping[str, int]) -> Placement:
    """Where the nodes are: this provider leaves its own out of what ONNX Runtime records.

    So they are the declared ones that the CPU lacks: the two are a session's only providers.
    """
    told = read_placement(session, provider)
    if provider in told.nodes:
        return told
    left = Counter(declared)
    left.subtract(told.strays)
    own = sum(count for count in left.values() if count > 0)
    nodes = {provider: own} if own and set(told.nodes) <= {CPU_PROVIDER} else {}
    return Placement(provider, {**nodes, **told.nodes}, told.strays)


def _session_options() -> Any:
    options = onnxruntime().SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1  # only shape arithmetic stays on the CPU
    return options


def _open(device: Device, options: Mapping[str, Any]) -> WebGpuBackend:
    return WebGpuBackend(device, options)


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """GPUs of any maker. Not taken by `auto`: a software GPU, slower than the CPU, looks alike."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="GPUs with a Vulkan, Metal or DirectX 12 driver, through WebGPU",
            probe=probe,
            open=_open,
            priority=-5,
            dialect={Stroke.PREFILL: "standard", Stroke.DECODE: "fused"},
        )
    ]
