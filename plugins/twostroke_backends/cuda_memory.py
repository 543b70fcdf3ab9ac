"""Memory of an NVIDIA GPU through the driver's library, `cuda.h` by ctypes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from twostroke.backends.ort import Blocks
from twostroke.backends.protocol import Array
from twostroke.errors import BackendError, OutOfMemoryError
from twostroke_backends.cuda_copies import describe_copy

if TYPE_CHECKING:
    from twostroke_backends.cuda_driver import CudaDriver

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for the stream that copies run on


class CudaMemory:
    """Memory on one device: allocate, copy, free. A `StagingMemory` for ONNX Runtime's buffers.

    Small tensors go through a stream, which ONNX Runtime's sessions are given to run on as well: so
    they arrive in order, without anybody waiting.
    """

    def __init__(self, driver: CudaDriver, index: int, context: ctypes.c_void_p) -> None:
        self._driver = driver
        self._index = index
        self._context = context
        self._stream: int | None = None

    @property
    def ort_device(self) -> tuple[str, int]:
        """What ONNX Runtime calls this device."""
        return "cuda", self._index

    def free_bytes(self) -> int:
        """Memory that nobody has taken."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, num_bytes: int) -> int:
        """The address of new memory, filled with zeros.

        Raises:
            OutOfMemoryError: with the bytes asked for and the bytes free.
        """
        address = ctypes.c_uint64()
        self._enter()
        size = ctypes.c_size_t(max(num_bytes, 1))
        code = self._driver.call("cuMemAlloc_v2", ctypes.byref(address), size)
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"{num_bytes} bytes on CUDA device {self._index} were refused, {self.free_bytes()} "
                f"are free. Lower `kv.budget`, `context_tokens` or `scheduler.max_rows`."
            )
        self._check("cuMemAlloc_v2", code)
        self._do("cuMemsetD8_v2", address, ctypes.c_ubyte(0), size)
        self._do("cuCtxSynchronize")
        return address.value

    def free(self, address: int) -> None:
        """Gives memory back. Errors are ignored: at exit the driver may be gone already."""
        self._driver.call("cuCtxSetCurrent", self._context)
        self._driver.call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_in(self, address: int, values: Array) -> None:
        """Copies a C-contiguous host array to the device and waits.

        The wait matters: a copy from pageable memory returns when the bytes are staged, and ONNX
        Runtime's stream does not wait for the stream of this copy.
        """
        source = ctypes.c_void_p(values.ctypes.data)
        self._do(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(values.nbytes)
        )
        self._do("cuCtxSynchronize")

    def copy_out(self, values: Array, address: int) -> None:
        """Copies from the device into a C-contiguous host array and waits."""
        target = ctypes.c_void_p(values.ctypes.data)
        self._do(
            "cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(values.nbytes)
        )

    @property
    def stream(self) -> int:
        """The handle of the stream that sessions and small tensors share; made on first use."""
        if self._stream is None:
            handle = ctypes.c_uint64()
            self._do("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING))
            self._stream = handle.value
        return self._stream

    def allocate_pinned(self, num_bytes: int) -> int:
        """The address of host memory that the device copies from by itself.

        Raises:
            OutOfMemoryError: the system refuses the bytes.
        """
        address = ctypes.c_uint64()
        self._enter()
        code = self._driver.call(
            "cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(num_bytes), ctypes.c_uint(0)
        )
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"{num_bytes} bytes of pinned host memory were refused. Raise the limit of locked "
                f"memory (`ulimit -l`), or free host memory."
            )
        self._check("cuMemHostAlloc", code)
        return address.value

    def free_pinned(self, address: int) -> None:
        """Gives it back. Errors are ignored, as by `free`."""
        self._driver.call("cuCtxSetCurrent", self._context)
        self._driver.call("cuMemFreeHost", ctypes.c_uint64(address))

    def send(self, address: int, source: int, num_bytes: int) -> None:
        """Queues a copy to the device before what sessions run from now on."""
        self._do(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_uint64(source),
            ctypes.c_size_t(num_bytes),
            ctypes.c_uint64(self.stream),
        )

    def fetch(self, target: int, address: int, num_bytes: int) -> None:
        """Copies to pinned memory what sessions have written so far, and waits."""
        self._do(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(address),
            ctypes.c_size_t(num_bytes),
            ctypes.c_uint64(self.stream),
        )
        self._do("cuStreamSynchronize", ctypes.c_uint64(self.stream))

    def copy_blocks(self, target: Blocks, source: Blocks, count: int, block_bytes: int) -> None:
        """Copies blocks at equal distances, on the device or from or to the host, and waits.

        The unaligned function takes any distance also within the device; the other need not.
        """
        copy = describe_copy(target, source, count, block_bytes)
        self._do("cuMemcpy2DUnaligned_v2", ctypes.byref(copy))
        self._do("cuCtxSynchronize")

    def release(self) -> None:
        """Gives stream and context back. Sessions and buffers must be gone before."""
        if self._stream is not None:
            self._driver.call("cuCtxSetCurrent", self._context)
            self._driver.call("cuStreamDestroy_v2", ctypes.c_uint64(self._stream))
            self._stream = None
        self._driver.call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(self._index))

    def _enter(self) -> None:
        """Makes the context current in this thread: the engine's is not the one that opened it."""
        self._check("cuCtxSetCurrent", self._driver.call("cuCtxSetCurrent", self._context))

    def _do(self, function: str, *arguments: Any) -> None:
        self._enter()
        self._check(function, self._driver.call(function, *arguments))

    def _check(self, function: str, code: int) -> None:
        if code != 0:
            raise BackendError(
                f"CUDA device {self._index}: {function} failed with {self._driver.error_text(code)}"
            )
