"""The benchmark of mixtures still runs and tells of every variant."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "moe_decode.py"


@pytest.mark.slow
def test_the_table_has_a_row_for_each_variant(monkeypatch, capsys):
    sizes = {"hidden": 64, "inner": 64, "layers": 1, "rounds": 1, "experts": 4}
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()[-3:]
    row = re.compile(r"2 of 4 +(\w+) +\d+ MB +([\d.]+) ms +([\d.]+) ms")
    found = [row.fullmatch(line) for line in rows]
    assert [match and match[1] for match in found] == ["gathered", "fp32", "int8"]
    assert all(float(match[group]) > 0 for match in found for group in (2, 3))
