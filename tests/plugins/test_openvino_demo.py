"""The demo model with its prompt read by OpenVINO and its answer made by the CPU provider."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from twostroke.bundle import open_bundle, seal, sealing
from twostroke.bundle.manifest import graph_file
from twostroke.model import Model
from twostroke.types import Stroke
from twostroke_backends import openvino

ir = pytest.importorskip("onnx_ir", reason="the extra export is not installed")
FOUND = openvino.probe()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOUND.is_available, reason=FOUND.reason),
]
STORY = "The museum was quiet until the youngest guard heard somebody singing behind the last door."


def in_both_dialects(source: Path, out: Path) -> Path:
    """A bundle of the demo model in both dialects at `out`, without tracing it again."""
    from twostroke_export.passes.standard.standardise import standardise
    from twostroke_export.weights import WeightFile

    bundle = open_bundle(source, check_hashes=False)
    with sealing(out) as folder:
        with WeightFile(folder) as weights:
            for stroke in Stroke:
                model = ir.external_data.load_to_model(ir.load(bundle.graph(stroke, "fused")))
                for dialect in ("fused", "standard"):
                    if dialect == "standard":
                        standardise(model, weights)
                    weights.store_initializers(model.graph)
                    ir.save(model, folder / graph_file(stroke, dialect))
        for name in ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json"):
            shutil.copyfile(source / name, folder / name)
        fused_facts = bundle.manifest.graphs
        plain = tuple(
            fact.model_copy(
                update={"dialect": "standard", "file": graph_file(fact.stroke, "standard")}
            )
            for fact in fused_facts
        )
        seal(folder, bundle.manifest.model_copy(update={"graphs": (*fused_facts, *plain)}))
    return out


def test_the_answer_is_that_of_the_cpu_alone(demo_bundle_fp32: Path, tmp_path: Path) -> None:
    both = in_both_dialects(demo_bundle_fp32, tmp_path / "both")

    def answer(**settings: object) -> tuple[tuple[int, ...], dict[str, str]]:
        with Model.open(
            both,
            backend="cpu",
            options={"share_weights": False},
            context_tokens=256,
            max_rows=1,
            **settings,
        ) as model:
            placed = {str(s): p.requested for s, p in model.engine.placements.items()}
            whole = model.complete(STORY, temperature=0, max_tokens=32, ignore_eos=True)
            return whole.token_ids, placed

    ids, _ = answer()
    assert len(ids) == 32
    same, placed = answer(prefill={"backend": "openvino", "options": {"cache": False}})
    assert same == ids
    assert placed == {"prefill": "OpenVINOExecutionProvider", "decode": "CPUExecutionProvider"}


# A process of its own, so that nothing else is counted.
MEMORY_SCRIPT = """
import json, sys, time
from twostroke.life.resident import process_bytes, read_resident_bytes
from twostroke.model import Model

model = Model.open(
    sys.argv[1],
    context_tokens=2048,
    max_rows=2,
    prefill={"backend": "openvino"},
    decode={"backend": "cpu"},
)
found = []

def note():
    planned = process_bytes() + model.status()["memory"]["planned_now_bytes"]
    found.append((planned, read_resident_bytes()))

note()
model.complete(tuple(range(100, 612)), temperature=0, max_tokens=4)
note()
model.complete(tuple(range(2000, 3500)), temperature=0, max_tokens=4)
while model.status()["memory"]["kv_spare_bytes"]:  # until the engine has rested
    time.sleep(0.05)
time.sleep(0.5)
note()
print(json.dumps(found))
model.close()
"""


@pytest.mark.alone
@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the proportional set size")
def test_planned_and_real_memory_are_within_a_tenth(demo_bundle_int8: Path, tmp_path: Path) -> None:
    """Loaded, after a prompt of 512 tokens, and at rest after one of 1,500."""
    both = in_both_dialects(demo_bundle_int8, tmp_path / "both")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(both)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TWOSTROKE_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    for planned, resident in found:
        assert resident == pytest.approx(planned, rel=0.1), found
