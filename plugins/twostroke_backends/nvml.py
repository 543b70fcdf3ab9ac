"""Memory of a GPU from NVIDIA's management library, without a context on the device. Reads only."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_SUCCESS = 0


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True, slots=True)
class NvmlMemory:
    """Bytes of a device; `is_instance`: of the part that this process was given (MIG)."""

    total_bytes: int
    free_bytes: int
    is_instance: bool = False

    @property
    def source(self) -> str:
        """Who says so, in a few words."""
        return "NVML, of the MIG instance" if self.is_instance else "NVML"


def memory_of(pci_bus_id: str, uuid: str = "", library: str = _LIBRARY) -> NvmlMemory | None:
    """Memory of the device at a PCI address, e.g. `0000:3B:00.0`; None where NVML does not tell.

    Asked by address, because NVML numbers devices in another order than CUDA does. On a device that
    is divided into instances, where the address stands for all of it, `uuid` (32 hexadecimal
    digits, as the driver tells) is that of the instance.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    return ask(nvml, pci_bus_id, uuid)


def ask(nvml: Any, pci_bus_id: str, uuid: str) -> NvmlMemory | None:
    """As `memory_of`, of a library that is loaded."""
    if nvml.nvmlInit_v2() != _SUCCESS:
        return None
    try:
        handle = ctypes.c_void_p()
        if len(uuid) == 32:
            name = ctypes.c_char_p(_instance_name(uuid).encode())
            if nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) == _SUCCESS:
                return _read(nvml, handle, is_instance=True)
        address = ctypes.c_char_p(pci_bus_id.encode())
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)) != _SUCCESS:
            return None
        return None if _is_divided(nvml, handle) else _read(nvml, handle, is_instance=False)
    finally:
        nvml.nvmlShutdown()


def _instance_name(uuid: str) -> str:
    parts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
    return f"MIG-{'-'.join(parts)}"


def _is_divided(nvml: Any, handle: ctypes.c_void_p) -> bool:
    """Whether the device's own figures are of more than what this process may use."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending))
    return code == _SUCCESS and current.value == 1


def _read(nvml: Any, handle: ctypes.c_void_p, *, is_instance: bool) -> NvmlMemory | None:
    memory = _Memory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != _SUCCESS:
        return None
    return NvmlMemory(int(memory.total), int(memory.free), is_instance)
