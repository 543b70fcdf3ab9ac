from __future__ import annotations

import psutil
import pytest

from twostroke.life import free_memory
from twostroke.life.free_memory import free_memory_bytes


def test_it_is_what_the_system_says():
    ours, theirs = free_memory_bytes(), psutil.virtual_memory().available
    assert 0 < ours < theirs * 1.2


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max\n", "5\n", None), ("100\n", "30\n", 70), ("100\n", "130\n", 0), ("what", "5", None)],
)
def test_a_control_group_may_leave_less(tmp_path, limit, used, expected):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    assert free_memory._cgroup_free_bytes(tmp_path) == expected


def test_files_that_a_control_group_would_give_up_are_free(tmp_path):
    (tmp_path / "memory.max").write_text("100")
    (tmp_path / "memory.current").write_text("90")
    (tmp_path / "memory.stat").write_text("anon 20\ninactive_file 40\nactive_file 30\n")
    assert free_memory._cgroup_free_bytes(tmp_path) == 50


def test_the_smaller_of_machine_and_group_counts(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:     8 kB\n")
    (tmp_path / "memory.max").write_text("9000")
    (tmp_path / "memory.current").write_text("1000")
    monkeypatch.setattr(free_memory.sys, "platform", "linux")
    monkeypatch.setattr(free_memory, "_PROC_MEMINFO", meminfo)
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    assert free_memory_bytes() == 8000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory_bytes() == 8192


@pytest.mark.skipif(not hasattr(free_memory.os, "sysconf"), reason="no sysconf on Windows")
def test_without_proc_half_of_the_physical_memory_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "_PROC_MEMINFO", tmp_path / "missing")
    assert free_memory_bytes() == pytest.approx(psutil.virtual_memory().total / 2, rel=0.01)
