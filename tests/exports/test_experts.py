"""The experts functions that are traced compute what the model's own code computes."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from twostroke.bundle import open_bundle
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.calibration import calibration_ids
from twostroke_export.experts import choosing_experts, settle
from twostroke_export.importance import measure_importance
from twostroke_export.load import load
from twostroke_export.pipeline import export_all, export_recipes
from twostroke_export.precision import Lowering
from twostroke_export.quantise import dequantise, quantise
from twostroke_export.recipe import Recipe
from twostroke_export.runner import TwoGraphs
from twostroke_export.source import resolve
from twostroke_export.weights import WEIGHTS_NAME

SIZES = {"num_experts_per_tok": 2, "num_local_experts": 4}
SHAPES = {
    "mixtral": SIZES,
    "gpt_oss": {**SIZES, "head_dim": 16},  # transposed weights, biases and a gate of its own
}
IDS = torch.tensor([[5, 17, 90, 3, 3]])


@pytest.fixture(params=SHAPES)
def model(request, make_model):
    folder = make_model(request.param, **SHAPES[request.param])
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def first_experts(model):
    return next(m for m in model.modules() if type(m).__name__.endswith("Experts"))


@pytest.mark.parametrize("stroke", Stroke)
def test_the_logits_stay(model, stroke):
    with torch.no_grad():
        theirs = model(IDS).logits
        with choosing_experts(model, stroke):
            assert model.config._experts_implementation != "eager"
            mine = model(IDS).logits
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert model.config._experts_implementation == "eager"


def test_experts_settle_on_one_operator(model):
    experts = first_experts(model)
    with choosing_experts(model, Stroke.DECODE, is_fused=True):
        assert experts.fused_gate == settle(experts)
        assert experts.fused_gate is not None
    assert not hasattr(experts, "fused_gate")


@pytest.mark.parametrize("change", ["half", "gelu", "norm"])
def test_what_the_operator_cannot_do_is_gathered_and_said(model, change, caplog):
    experts = first_experts(model)
    if change == "half":
        experts.half()
    elif change == "gelu":
        experts._apply_gate = lambda both: functional.gelu(both[..., 0::2]) * both[..., 1::2]
    else:
        experts.has_post_expert_norm = True
    assert settle(experts) is None
    caplog.clear()
    with choosing_experts(model, Stroke.PREFILL, is_fused=True):
        assert "a prompt runs all of them" in caplog.text


def test_a_dense_model_is_left_alone(tiny_llama):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    before = model.config._experts_implementation
    with choosing_experts(model, Stroke.DECODE):
        assert model.config._experts_implementation == before


def test_experts_without_a_plug_point_are_refused(model, monkeypatch):
    monkeypatch.setattr(
        type(model), "_can_set_experts_implementation", classmethod(lambda _: False)
    )
    with pytest.raises(ExportError, match="does not dispatch its experts"):
        choosing_experts(model, Stroke.DECODE).__enter__()


@pytest.fixture(scope="module")
def bundles(make_model, tmp_path_factory):
    """One layer with a router that is wide enough to be quantised, if it were like the rest."""
    sizes = {"num_hidden_layers": 1, "num_experts_per_tok": 2, "num_experts": 40}
    folder = make_model("qwen3_moe", head_dim=16, moe_intermediate_size=64, **sizes)
    out = tmp_path_factory.mktemp("experts")
    return export_all(str(folder), {name: out / name for name in ("int4", "int8", "fp16")})


@pytest.mark.parametrize(
    ("precision", "operators"),
    [
        ("int8", {"QMoE": 1, "MoE": 0, "MatMulNBits": 3, "MatMul": 0, "Gemm": 1}),
        ("int4", {"QMoE": 1, "MoE": 0, "MatMulNBits": 3, "MatMul": 0, "Gemm": 1}),
        ("fp16", {"QMoE": 0, "MoE": 0, "MatMulNBits": 0}),
    ],
)
def test_a_mixture_exports_in_every_precision(bundles, precision, operators):
    bundle = open_bundle(bundles[precision])
    for stroke in Stroke:
        graph = onnx.load(bundle.graph(stroke), load_external_data=False).graph
        found = Counter(node.op_type for node in graph.node)
        assert {name: found[name] for name in operators} == operators  # the router is a Gemm
        stored = {tensor.name for tensor in graph.initializer}
        turned = [node.input[0] for node in graph.node if node.op_type == "Transpose"]
        assert not stored.intersection(turned)


def test_experts_without_an_operator_are_quantised_too(make_model, tmp_path):
    folder = make_model("mixtral", num_hidden_layers=1, hidden_act="gelu", **SIZES)
    recipe = Recipe(prefill="int8", decode="int8", dialects=("fused", "standard"))
    export_recipes(str(folder), {tmp_path / "int8": recipe})
    bundle = open_bundle(tmp_path / "int8")
    for stroke in Stroke:
        graph = onnx.load(bundle.graph(stroke), load_external_data=False).graph
        found = Counter(node.op_type for node in graph.node)
        assert found["GatherBlockQuantized"] == 3  # the embedding, gate and up, down
    num_weights = 4 * 3 * 64 * 128 + 2 * 320 * 64 + 4 * 64 * 64
    assert (bundle.root / WEIGHTS_NAME).stat().st_size < 1.5 * num_weights
    divergences = {v.dialect: v.mean_kl for v in bundle.manifest.verifications}
    assert set(divergences) == {"fused", "standard"}
    assert max(divergences.values()) < 0.01


def test_four_bits_answer_as_the_source_with_the_same_bits(make_model, tmp_path, monkeypatch):
    """At accuracy level 0 activations stay floats: only the experts' weights are others."""
    usual = Recipe.lowering

    def only_experts(recipe: Recipe, stroke: Stroke) -> Lowering:
        return dataclasses.replace(
            usual(recipe, stroke),
            layers=lambda name: 4 if "experts" in name else None,
            head=None,
        )

    monkeypatch.setattr(Recipe, "lowering", only_experts)
    folder = make_model("gpt_oss", num_hidden_layers=1, **SHAPES["gpt_oss"])
    recipe = Recipe(prefill="int4", decode="int4", accuracy_level=0)
    export_recipes(str(folder), {tmp_path / "int4": recipe})
    manifest = open_bundle(tmp_path / "int4").manifest
    graphs = TwoGraphs(tmp_path / "int4", manifest.kv_layers, manifest.kv_dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    experts, blocks = first_experts(model), recipe.lowering(Stroke.DECODE).blocks(4)
    loaded = load(resolve(str(folder)))
    importance = measure_importance(loaded.model, calibration_ids(loaded, 256))
    for name in ("gate_up_proj", "down_proj"):
        weigh = importance[f"model.layers.0.mlp.experts.{name}"]
        for matrix in getattr(experts, name).data.mT:  # [out, in] of each expert, a view
            rounded = dequantise(quantise(matrix.numpy(), blocks, weigh), matrix.shape[1])
            matrix.copy_(torch.from_numpy(rounded))
    with torch.no_grad():
        theirs = model(IDS).logits[0].numpy()
    ids = IDS[0].tolist()
    np.testing.assert_allclose(graphs.prefill([ids[:3]])[0], theirs[2], atol=1e-4)
    np.testing.assert_allclose(graphs.decode([ids[3]])[0], theirs[3], atol=1e-4)


def test_the_bundle_shrinks_with_the_experts(bundles):
    sizes = {name: (path / WEIGHTS_NAME).stat().st_size for name, path in bundles.items()}
    assert sizes["int8"] < 0.65 * sizes["fp16"]
    assert sizes["int4"] < 0.42 * sizes["fp16"]
