"""Free memory of a GPU from NVIDIA's management library, without a context on the device."""

from __future__ import annotations

import ctypes
import sys

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def free_bytes(pci_bus_id: str, library: str = _LIBRARY) -> int | None:
    """Free bytes of the device at a PCI address, e.g. `0000:3B:00.0`; None where NVML is absent.

    Asked by PCI address, because NVML numbers devices in another order than CUDA does.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        handle, memory = ctypes.c_void_p(), _Memory()
        address = ctypes.c_char_p(pci_bus_id.encode())
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)) != 0:
            return None
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return int(memory.free)
    finally:
        nvml.nvmlShutdown()
