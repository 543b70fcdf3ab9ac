"""What a model took comes back when it is unloaded, however often it comes and goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the proportional set size"),
]

# A process of its own. Prints for each turn what it took with the model and without, its open files
# and its maps of the model's.
SCRIPT = """
import asyncio, json, os, sys
from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import Config
from twostroke.life.resident import read_resident_bytes
from twostroke.model import Model
from twostroke.server.models import Models
from twostroke.server.residency import Residency

plugins = load_plugins()

def load(settings, report):
    return Model.from_config(settings.model, settings.scheduler, plugins=plugins)

def num_maps():
    folders = sys.argv[1], os.environ["TWOSTROKE_CACHE"]
    return sum(any(f in line for f in folders) for line in open("/proc/self/maps"))

async def main():
    store = {"prefixes": {"store": "64MiB"}}
    model = {"name": "m", "source": sys.argv[1], "backend": "cpu", "kv": store}
    models = Models()
    models.serve(Config.model_validate({"models": [model]}))
    residency, served = Residency(models, load, 60), models.served["m"]
    for _ in range(3):
        await residency.load(served)
        answer = lambda: str(models.find("m").complete("a b " * 40, max_tokens=4))
        await asyncio.to_thread(answer)
        told = {"loaded": read_resident_bytes(), "maps_loaded": num_maps()}
        await residency.unload(served)
        told |= {"unloaded": read_resident_bytes(), "maps_unloaded": num_maps()}
        print(json.dumps(told | {"files": len(os.listdir("/proc/self/fd"))}), flush=True)

asyncio.run(main())
"""


def test_memory_maps_and_files_come_back(demo_bundles: dict[str, Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(demo_bundles["int8"])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TWOSTROKE_CACHE": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(turns) == 3
    # Weights of 145 MB and more; libraries and what Python imported on the way stay.
    assert all(turn["loaded"] - turn["unloaded"] > 145e6 for turn in turns), turns
    assert turns[2]["unloaded"] < turns[1]["unloaded"] * 1.1, "flat from the second on"
    assert all(turn["maps_loaded"] > 0 for turn in turns)
    assert all(turn["maps_unloaded"] == 0 for turn in turns)
    assert len({turn["files"] for turn in turns}) == 1
