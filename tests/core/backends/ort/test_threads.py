"""The pool of a process is made once and for good, so each test has a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twostroke.testing.onnx_bundles import make_onnx_bundle

SCRIPT = """
import json, os, sys
from pathlib import Path
from twostroke.backends.ort import *
from twostroke.errors import BackendError

def num_threads():
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0

def session(options=None):
    options = options or onnxruntime().SessionOptions()
    return load_session(Path(sys.argv[1]), CPU_PROVIDER, {}, options)

def asking_for(num):
    options = onnxruntime().SessionOptions()
    options.intra_op_num_threads = num
    return options

found = {}
"""


def run(tmp_path: Path, body: str) -> tuple[dict[str, Any], str]:
    """What a script leaves in `found`, and what it printed to stderr."""
    graph = make_onnx_bundle(tmp_path / "tiny") / "decode.onnx"
    source = f"{SCRIPT}\n{body}\nprint(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-c", source, graph],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_all_sessions_run_in_the_threads_that_are_there(tmp_path: Path) -> None:
    found, told = run(
        tmp_path,
        """
onnxruntime()
before = num_threads()
share_threads(4)
pool = num_threads()
sessions = [session(), session(asking_for(3))]
found["made by the pool"] = pool - before
found["made by the sessions"] = num_threads() - pool
found["shared"] = num_shared_threads()
""",
    )
    # The thread that calls `run` is the fourth.
    assert found == {"made by the pool": 3, "made by the sessions": 0, "shared": 4}
    assert told == "", "ONNX Runtime complains of numbers that mean nothing in a pool"


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_without_a_pool_each_session_has_its_own(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path,
        """
onnxruntime()
before = num_threads()
sessions = [session(asking_for(3)), session(asking_for(3))]
found["made"] = num_threads() - before
found["shared"] = num_shared_threads()
""",
    )
    assert found == {"made": 4, "shared": None}


def test_a_pool_of_another_size_is_refused_and_the_first_one_stays(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path,
        """
early = session()
share_threads(2)
share_threads(2)
try:
    share_threads(3)
except BackendError as error:
    found["error"] = str(error)
found["shared"] = num_shared_threads()
session(), early.close()
""",
    )
    assert found["shared"] == 2
    assert found["error"].startswith("The sessions of this process cannot share 3 threads: ")


def test_a_pool_that_others_have_made_is_not_taken_for_ours(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path,
        """
onnxruntime().set_global_thread_pool_sizes(2, 1)
try:
    share_threads(2)
except BackendError as error:
    found["error"] = str(error)
found["shared"] = num_shared_threads()
""",
    )
    assert found["shared"] is None
    assert "ask for it once, and first" in found["error"]
