"""The demo model with its prompt read by OpenVINO and its answer made by the CPU provider."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from twostroke.bundle import open_bundle, seal, sealing
from twostroke.bundle.manifest import graph_file
from twostroke.model import Model
from twostroke.types import Stroke
from twostroke_backends import openvino

pytestmark = pytest.mark.slow
ir = pytest.importorskip("onnx_ir", reason="the extra export is not installed")
FOUND = openvino.probe()
STORY = "The museum was quiet until the youngest guard heard somebody singing behind the last door."


@pytest.fixture(scope="module")
def both(demo_bundle_fp32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's fp32 bundle in both dialects, without tracing it again."""
    from twostroke_export.passes.standard.standardise import standardise
    from twostroke_export.weights import WeightFile

    bundle = open_bundle(demo_bundle_fp32, check_hashes=False)
    out = tmp_path_factory.mktemp("openvino") / "both"
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
            shutil.copyfile(demo_bundle_fp32 / name, folder / name)
        fused_facts = bundle.manifest.graphs
        plain = tuple(
            fact.model_copy(
                update={"dialect": "standard", "file": graph_file(fact.stroke, "standard")}
            )
            for fact in fused_facts
        )
        seal(folder, bundle.manifest.model_copy(update={"graphs": (*fused_facts, *plain)}))
    return out


@pytest.mark.skipif(not FOUND.is_available, reason=FOUND.reason)
def test_the_answer_is_that_of_the_cpu_alone(both: Path) -> None:
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
