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

from twostroke.errors import BackendUnavailableError
from twostroke_backends.cuda_memory import CudaMemory

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
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
    uuid: str = ""  # 32 hexadecimal digits; of the instance on a device that is divided (MIG)


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
            uuid=self._uuid(device),
        )

    def _uuid(self, device: ctypes.c_int) -> str:
        """Empty where the driver is too old to tell."""
        content = (ctypes.c_ubyte * 16)()
        try:
            code = self.call("cuDeviceGetUuid_v2", ctypes.byref(content), device)
        except AttributeError:  # before CUDA 11.4
            return ""
        return bytes(content).hex() if code == 0 else ""

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
