"""Memory of the GPU that WebGPU drives: opaque buffers that only ONNX Runtime can fill and read.

Its Python interface neither allocates nor writes them. A graph that copies its input does both:
its output is bound to the device, newly or onto a buffer that is there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from twostroke.backends.ort import (
    HandleBuffer,
    check_like,
    first_line,
    numpy_dtype,
    onnxruntime,
)
from twostroke.backends.protocol import Array
from twostroke.bundle import onnx_wire
from twostroke.errors import OutOfMemoryError

_DEVICE = ("webgpu", 0)
_PROVIDER = "WebGpuExecutionProvider"


class WebGpuMemory:
    """Copies arrays to the GPU, new or onto what is there. Owns a session for each dtype.

    The sessions hold the GPU, so each buffer holds on to this: memory that is given back after the
    last session has gone ends the process.
    """

    def __init__(self, provider_options: dict[str, str]) -> None:
        """Opens the GPU; raises what ONNX Runtime raises where there is none."""
        self._provider_options = provider_options
        self._sessions: dict[str, Any] = {}
        self.upload(np.zeros((1,), np.float32), "float32")

    def upload(self, values: Array, dtype: str, onto: Any = None) -> Any:
        """A copy of `values` on the GPU, as an OrtValue: `onto`, which is mutated, or a new one.

        `dtype` is that of `values`, by numpy's name, which numpy would put together anew each time.
        """
        session = self._session(dtype)
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.asarray(values, order="C"))
        if onto is None:
            binding.bind_output("y", *_DEVICE)
        else:
            binding.bind_ortvalue_output("y", onto)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    def _session(self, dtype: str) -> Any:
        if dtype not in self._sessions:
            runtime = onnxruntime()
            options = runtime.SessionOptions()
            options.log_severity_level = 4  # what fails is raised
            self._sessions[dtype] = runtime.InferenceSession(
                _copy_graph(dtype),
                options,
                providers=[(_PROVIDER, dict(self._provider_options))],
                enable_fallback=0,
            )
        return self._sessions[dtype]


class WebGpuBuffer(HandleBuffer):
    """A shape on the GPU."""

    __slots__ = ("_memory",)

    def __init__(self, memory: WebGpuMemory, shape: tuple[int, ...], dtype: str) -> None:
        """Allocates zeros.

        Raises:
            OutOfMemoryError: the GPU refuses the bytes.
        """
        super().__init__(None, shape, dtype)
        self._memory = memory
        kind = numpy_dtype(dtype)
        try:
            self._value = memory.upload(np.zeros(shape, kind), dtype)
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            raise OutOfMemoryError(
                f"{math.prod(shape) * kind.itemsize} bytes on the GPU for a buffer of "
                f"{dtype}{list(shape)} were refused: {first_line(error)} Lower `kv.budget`, "
                f"`context_tokens` or `scheduler.max_rows`."
            ) from error

    def __del__(self) -> None:
        self._value = None  # before the sessions that it came from

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) to the GPU."""
        check_like(self, values)
        self._memory.upload(values, self._dtype, self._value)


def _copy_graph(dtype: str) -> bytes:
    """An .onnx file: y is a copy of x, whatever its shape."""
    return onnx_wire.model(
        "copy",
        [onnx_wire.node("Identity", ["x"], ["y"])],
        [onnx_wire.free_value_info("x", dtype)],
        [onnx_wire.free_value_info("y", dtype)],
        [],
        {"": 21},
    )
