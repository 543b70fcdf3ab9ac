"""How much host memory a process may still take, without a third-party package."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_PROC_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Bytes that can be had without swapping.

    Linux: `MemAvailable`, or what the control group leaves where that is less. Windows:
    `GlobalMemoryStatusEx`. Elsewhere, where nothing cheap tells free from cached memory: half of
    the physical memory.
    """
    if sys.platform == "win32":
        return _windows_free_bytes()
    available = _linux_available_bytes(_PROC_MEMINFO)
    if available is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    in_group = _cgroup_free_bytes(_CGROUP)
    return available if in_group is None else min(available, in_group)


def _linux_available_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024  # the file counts in kB
    return None


def _cgroup_free_bytes(group: Path) -> int | None:
    """What version 2 of control groups leaves; None where there is no limit or no group.

    Files that were read and are not in use count as used there, and are given up on demand.
    """
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text()) - _inactive_file_bytes(group)
        return None if limit == "max" else max(int(limit) - used, 0)
    except (OSError, ValueError):
        return None


def _inactive_file_bytes(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith("inactive_file "))
    return sum(int(number) for _, number in found)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("memory_load", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "total_physical",
                "available_physical",
                "total_page_file",
                "available_page_file",
                "total_virtual",
                "available_virtual",
                "available_extended_virtual",
            )
        ),
    ]


def _windows_free_bytes() -> int:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    windll = getattr(ctypes, "windll")  # noqa: B009 - absent from the stubs elsewhere
    windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.available_physical)
