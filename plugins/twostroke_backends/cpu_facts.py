"""What this machine's processor is: threads worth using, instruction sets, memory."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path

_INSTRUCTION_SETS = (  # /proc/cpuinfo's flags that ONNX Runtime's kernels are chosen by
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that matter to matrix products; empty where the system hides them."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return tuple(name for name in _INSTRUCTION_SETS if name in flags)


def cpu_kind() -> str:
    """A short hash that differs where ONNX Runtime might lay weights out differently."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    flags = " ".join(sorted(match[1].split())) if match else ""
    text = "\n".join((platform.system(), platform.machine(), cpu_name(), flags))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def num_usable_threads() -> int:
    """One thread for each physical core that this process may use, at least one.

    Two threads on one core share its matrix units, so siblings count once. Container limits
    (cgroup v2 `cpu.max`) lower the number.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    num_cpus = len(allowed) if allowed is not None else os.cpu_count() or 1
    cores = set()
    for cpu in allowed or ():
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add((_text(topology / "physical_package_id"), _text(topology / "core_id")))
        except OSError:
            return min(num_cpus, _quota(num_cpus))
    return max(1, min(len(cores) or num_cpus, _quota(num_cpus)))


def memory_bytes() -> int | None:
    """The memory this process may use at most; None where the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    try:
        limit = _text(Path("/sys/fs/cgroup/memory.max"))
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _quota(num_cpus: int) -> int:
    """Whole processors that the container's quota pays for; `num_cpus` where there is none."""
    try:
        quota, period = _text(Path("/sys/fs/cgroup/cpu.max")).split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return num_cpus
