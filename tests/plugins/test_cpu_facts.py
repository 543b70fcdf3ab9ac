from __future__ import annotations

from pathlib import Path

import pytest

from twostroke_backends import cpu_facts

CPUINFO = """processor\t: 0
model name\t: A Processor @ 2 GHz
flags\t\t: fpu avx2 avx512f amx_int8 sse2

processor\t: 1
model name\t: A Processor @ 2 GHz
flags\t\t: fpu avx2 avx512f amx_int8 sse2
"""


def test_the_kind_differs_with_the_instruction_sets(monkeypatch):
    monkeypatch.setattr(cpu_facts, "_cpuinfo", lambda: CPUINFO)
    first = cpu_facts.cpu_kind()
    assert cpu_facts.instruction_sets() == ("avx2", "avx512f", "amx_int8")
    assert cpu_facts.cpu_name() == "A Processor @ 2 GHz"
    monkeypatch.setattr(cpu_facts, "_cpuinfo", lambda: CPUINFO.replace(" amx_int8", ""))
    assert cpu_facts.instruction_sets() == ("avx2", "avx512f")
    assert cpu_facts.cpu_kind() != first


def test_a_system_that_hides_its_processor_still_has_a_kind(monkeypatch):
    monkeypatch.setattr(cpu_facts, "_cpuinfo", lambda: "")
    assert cpu_facts.instruction_sets() == ()
    assert cpu_facts.cpu_name()
    assert len(cpu_facts.cpu_kind()) == 16


class Files:
    """Stands in for /sys: texts by path, the rest is absent."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def __call__(self, path: Path) -> str:
        try:
            return self.texts[path.as_posix()]
        except KeyError:
            raise FileNotFoundError(path) from None


def topology(cores: dict[int, int]) -> dict[str, str]:
    root = "/sys/devices/system/cpu/cpu{}/topology/{}"
    texts = {root.format(cpu, "core_id"): str(core) for cpu, core in cores.items()}
    return texts | {root.format(cpu, "physical_package_id"): "0" for cpu in cores}


@pytest.mark.parametrize(
    ("allowed", "texts", "expected"),
    [
        ({0, 1, 2, 3}, topology({0: 0, 1: 0, 2: 1, 3: 1}), 2),  # two siblings on each core
        ({0, 2}, topology({0: 0, 1: 0, 2: 1, 3: 1}), 2),
        ({1}, topology({0: 0, 1: 0}), 1),  # pinned to one
        ({0, 1, 2, 3}, {}, 4),  # a system without topology
        ({0, 1, 2, 3}, {"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),  # a container's share
        ({0, 1}, {"/sys/fs/cgroup/cpu.max": "max 100000"}, 2),
        ({0, 1}, {"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
    ],
)
def test_one_thread_for_each_core_that_may_be_used(monkeypatch, allowed, texts, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: allowed, raising=False)
    monkeypatch.setattr(cpu_facts, "_text", Files(texts))
    assert cpu_facts.num_usable_threads() == expected


def test_a_containers_memory_limit_counts(monkeypatch):
    monkeypatch.setattr(cpu_facts, "_text", Files({"/sys/fs/cgroup/memory.max": "1000000"}))
    assert cpu_facts.memory_bytes() == 1_000_000
    monkeypatch.setattr(cpu_facts, "_text", Files({"/sys/fs/cgroup/memory.max": "max"}))
    assert cpu_facts.memory_bytes() > 1 << 28
