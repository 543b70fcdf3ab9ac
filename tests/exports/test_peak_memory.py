"""An export holds its source once, in fp32, and little beside it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="reads peaks from /proc"),
]

# A tiny export comes first, so that what imports take does not count. Prints the peak of resident
# memory behind it, mapped files included, and what the model takes in fp32; both in bytes.
PROGRAM = """
import sys
from pathlib import Path
from twostroke_export.heap import release
from twostroke_export.pipeline import export_all
from twostroke_export.testing.sharded_model import save_sharded_model
from twostroke_export.testing.tiny_models import save_tiny_model

def resident(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])

def outs(name):
    return {precision: folder / f"{name}-{precision}" for precision in ("fp32", "int8")}

folder = Path(sys.argv[1])
export_all(str(save_tiny_model(folder / "tiny", "llama")), outs("tiny"))
num_bytes = save_sharded_model(folder / "sharded")
release()
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
before = resident("VmRSS")
export_all(str(folder / "sharded"), outs("sharded"), context_tokens=128)
print(resident("VmHWM") - before, num_bytes)
"""


def test_stays_below_1_3_times_the_fp32_model(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    peak, num_bytes = map(int, ran.stdout.splitlines()[-1].split())
    assert num_bytes > 500e6
    assert num_bytes < peak < 1.3 * num_bytes
