"""Two sessions hold the demo model's weights once: measured as the proportional set size (PSS),
which counts a page that two mappings share once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell the PSS"
    ),
]

# Opens the strokes named in argv, runs each of them on the same row, and tells its PSS in KiB.
_MEASURE = """
import json, re, sys
from pathlib import Path
import numpy as np
from twostroke.backends import Device
from twostroke.bundle import open_bundle
from twostroke.types import Stroke
from twostroke_backends.cpu import CpuBackend

NUM_TOKENS, CAPACITY = 256, 512
bundle = open_bundle(Path(sys.argv[1]), check_hashes=False)
strokes = [Stroke(name) for name in sys.argv[2:-1]]
backend = CpuBackend(Device(0, "", "cpu"), json.loads(sys.argv[-1]))
sessions = {stroke: backend.open_session(bundle.graph(stroke), stroke) for stroke in strokes}
cache = {}

def run(stroke, num_new, past):
    session = sessions[stroke]
    sizes = {"batch": 1, "sequence": num_new, "capacity": CAPACITY}
    values = {
        "input_ids": np.full((1, num_new), 28, np.int64),
        "position_ids": np.arange(past, past + num_new)[None],
        "seqlens_k": np.array([past + num_new - 1], np.int32),
        "total_sequence_length": np.array(past + num_new, np.int32),
        "logit_index": np.array([[num_new - 1]]),
    }
    inputs = {}
    for name, spec in session.inputs.items():
        if name in values:
            inputs[name] = backend.allocate(values[name].shape, spec.dtype)
            inputs[name].write(values[name])
        else:
            layer = bundle.manifest.kv_layers[int(name.split(".")[1])]
            shape = (1, layer.num_kv_heads, CAPACITY, layer.head_dim)
            inputs[name] = cache.setdefault(name, backend.allocate(shape, spec.dtype))
    outputs = {
        name: inputs.get(name.replace("present", "past_key_values"))
        or backend.allocate((1, 1, bundle.manifest.architecture.vocab_size), spec.dtype)
        for name, spec in session.outputs.items()
    }
    session.bind(inputs, outputs).run()
    assert np.isfinite(outputs["logits"].read()).all()

if Stroke.PREFILL in sessions:
    run(Stroke.PREFILL, NUM_TOKENS, 0)
if Stroke.DECODE in sessions:
    for step in range(3):
        run(Stroke.DECODE, 1, NUM_TOKENS + step)
text = Path("/proc/self/smaps_rollup").read_text()
print(re.search(r"^Pss:\\s*(\\d+)", text, re.MULTILINE)[1])
"""


def pss_kib(bundle: Path, *strokes: str, **options: object) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(bundle), *strokes, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_two_sessions_take_the_memory_of_one(demo_bundles, precision):
    bundle = demo_bundles[precision]
    first_start = pss_kib(bundle, "prefill", "decode")  # packs the weights
    one, two = pss_kib(bundle, "prefill"), pss_kib(bundle, "prefill", "decode")
    unshared = pss_kib(bundle, "prefill", "decode", share_weights=False)
    print(f"{precision}: one {one}, two {two}, first start {first_start}, unshared {unshared} KiB")
    assert two <= 1.1 * one
    assert first_start <= 1.1 * two  # what packing took was given back
    assert unshared > 1.3 * two  # else there was nothing to gain, and this test shows nothing
