"""The memory plan against what a process with the demo model really takes."""

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

# A process of its own, so that nothing else is counted. Prints what was planned and what was.
SCRIPT = """
import json, random, sys, threading, time
from twostroke.life.resident import process_bytes, read_resident_bytes
from twostroke.model import Model

settings = json.loads(sys.argv[2])
model = Model.open(sys.argv[1], backend="cpu", **settings)
ended, peak = threading.Event(), [0]

def watch():
    while not ended.wait(0.02):
        peak[0] = max(peak[0], read_resident_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
random.seed(0)
lengths = json.loads(sys.argv[3])
prompts = [[random.randrange(100, 40000) for _ in range(n)] for n in lengths]
answers = [model.generate(ids, temperature=0, max_tokens=int(sys.argv[4])) for ids in prompts]
used = [answer.complete().num_prompt_tokens for answer in answers]
ended.set()
watcher.join()
busy = read_resident_bytes()
if settings.get("kv"):  # nothing is kept: wait until the memory went back
    while model.status()["load"]["kv_tokens_touched"]:
        time.sleep(0.05)
print(json.dumps(dict(
    used=used, peak=peak[0], busy=busy, resident=read_resident_bytes(), before=process_bytes(),
    **model.status()["memory"],
)))
model.close()
"""


def run(
    bundle: Path, lengths: list[int], max_tokens: int, cache: Path, **settings: object
) -> dict[str, int]:
    done = subprocess.run(
        [
            *(sys.executable, "-c", SCRIPT, str(bundle)),
            *(json.dumps(settings), json.dumps(lengths), str(max_tokens)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TWOSTROKE_CACHE": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_planned_and_real_are_within_a_tenth(
    demo_bundles: dict[str, Path], cache: Path, precision: str
) -> None:
    bundle = demo_bundles[precision]
    found = run(bundle, [900, 700, 500], 4, cache, context_tokens=1024, max_rows=4)
    planned = found["before"] + found["planned_now_bytes"]
    assert found["resident"] == pytest.approx(planned, rel=0.1)
    assert found["planned_now_bytes"] <= found["planned_bytes"]


def test_memory_of_rows_that_ended_goes_back(demo_bundle_int8: Path, cache: Path) -> None:
    kv = {"prefixes": {"reuse": False}}
    found = run(demo_bundle_int8, [1800, 1500], 4, cache, context_tokens=2048, max_rows=2, kv=kv)
    written_bytes = (1800 + 1500) * found["kv_bytes_per_token"]
    assert found["busy"] - found["resident"] == pytest.approx(written_bytes, rel=0.2)
    assert found["kv_now_bytes"] == 0
    planned = found["before"] + found["planned_now_bytes"]
    assert found["resident"] == pytest.approx(planned, rel=0.1)


def test_a_prompt_of_8000_tokens_stays_under_the_plan(demo_bundle_int8: Path, cache: Path) -> None:
    """Logits of every position would add 1.5 GiB, unchunked scores 2.25 GiB."""
    found = run(demo_bundle_int8, [8000], 1, cache, max_rows=1)
    assert found["used"] == [8000]
    assert found["peak"] < found["before"] + found["planned_now_bytes"] < 800 * 2**20
