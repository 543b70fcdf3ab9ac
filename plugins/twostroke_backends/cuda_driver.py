"""The NVIDIA driver through ctypes: which devices are there, and memory on them.

The driver's own library is asked, because it is the only part of CUDA that cannot be installed
with pip: where it answers, the rest can be mended. Function names and numbers are those of the
CUDA driver API (`cuda.h`).
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from twostroke.backends.ort import Blocks
from twostroke.backends.protocol import Array
from twostroke.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from twostroke_backends.cuda_copies import describe_copy

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_CLOCK_KHZ, _BUS_BITS, _MAJOR, _MINOR = 36, 37, 75, 76  # CUdevice_attribute


@dataclass(frozen=True, slots=True)
class CudaDeviceFacts:
    """What the driver tells of one device."""

    index: int
    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    bandwidth_bytes_per_s: float | None
    pci_bus_id: str


def load_library(name: str = LIBRARY) -> ctypes.CDLL:
    """The driver's library.

    Raises:
        BackendUnavailableError: the system has none.
    """
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise BackendUnavailableError(
            f"the NVIDIA driver's library {name} cannot be loaded: install the NVIDIA driver "
            f"(in a container, start it with `--gpus all`)."
        ) from error


class CudaDriver:
    """The driver, initialised.

    `library` is what `load_library` gives; tests hand in their own.
    """

    def __init__(self, library: Any) -> None:
        """Initialises the driver.

        Raises:
            BackendUnavailableError: it finds no device, or does not fit the kernel's module.
        """
        self._library = library
        code = library.cuInit(0)
        if code != 0:
            raise BackendUnavailableError(
                f"the NVIDIA driver is installed but does not start ({self.error_text(code)}); "
                f"`nvidia-smi` must list a device, and CUDA_VISIBLE_DEVICES must not hide it."
            )

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA version the driver can serve, e.g. (13, 0)."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value // 1000, version.value % 1000 // 10

    def devices(self) -> list[CudaDeviceFacts]:
        """Every device that CUDA_VISIBLE_DEVICES leaves visible."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._facts(index) for index in range(count.value)]

    def memory(self, index: int) -> CudaMemory:
        """Memory on a device, in the primary context (the one that ONNX Runtime uses).

        Raises:
            BackendUnavailableError: no context can be made.
        """
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(index))
        return CudaMemory(self, index, context)

    def _facts(self, index: int) -> CudaDeviceFacts:
        device = ctypes.c_int(index)
        name = ctypes.create_string_buffer(128)
        bus_id = ctypes.create_string_buffer(32)
        total = ctypes.c_size_t()
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        self._call("cuDeviceGetPCIBusId", bus_id, ctypes.c_int(len(bus_id)), device)
        clock_khz, bus_bits, major, minor = (
            self._attribute(number, device) for number in (_CLOCK_KHZ, _BUS_BITS, _MAJOR, _MINOR)
        )
        # Memory transfers twice a clock: bytes/s = 2 * clock * width / 8 (as the CUDA samples do).
        bandwidth = 2.0 * clock_khz * 1e3 * bus_bits / 8
        return CudaDeviceFacts(
            index=index,
            name=name.value.decode(errors="replace"),
            total_bytes=total.value,
            compute_capability=(major, minor),
            bandwidth_bytes_per_s=bandwidth or None,
            pci_bus_id=bus_id.value.decode(errors="replace"),
        )

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        code = self._library.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(number), device)
        return value.value if code == 0 else 0

    def call(self, function: str, *arguments: Any) -> int:
        """Calls a driver function and answers its code."""
        return int(getattr(self._library, function)(*arguments))

    def _call(self, function: str, *arguments: Any) -> None:
        code = self.call(function, *arguments)
        if code != 0:
            raise BackendUnavailableError(
                f"the NVIDIA driver refused {function}: {self.error_text(code)}."
            )

    def error_text(self, code: int) -> str:
        """The driver's words for an error code."""
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) == 0
        words = text.value.decode(errors="replace") if known and text.value else "unknown error"
        return f"CUDA error {code}: {words}"


class CudaMemory:
    """Memory on one device: allocate, copy, free. A `DeviceMemory` for ONNX Runtime's buffers."""

    def __init__(self, driver: CudaDriver, index: int, context: ctypes.c_void_p) -> None:
        self._driver = driver
        self._index = index
        self._context = context

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

    def copy_blocks(self, target: Blocks, source: Blocks, count: int, block_bytes: int) -> None:
        """Copies blocks at equal distances, on the device or from or to the host, and waits.

        The unaligned function takes any distance also within the device; the other need not.
        """
        copy = describe_copy(target, source, count, block_bytes)
        self._do("cuMemcpy2DUnaligned_v2", ctypes.byref(copy))
        self._do("cuCtxSynchronize")

    def release(self) -> None:
        """Gives the context back. Buffers must be gone before."""
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
