"""Models with attention code of their own: their cache is read off, and they are exported."""

from __future__ import annotations

import onnx
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle import open_bundle
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.own_attention import attending_eagerly, observe_own_attention
from twostroke_export.pipeline import export

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}


def tiny(model_type: str, **changes):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES, **changes))


def test_the_geometry_comes_from_the_cache():
    observed = observe_own_attention(tiny("falcon"))
    assert not observed.is_fusable
    assert len(observed.layers) == 3
    layer = observed.layers[0]  # falcon has one key head for all
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim) == (4, 1, 8)


def test_a_model_without_a_cache_is_refused():
    model = tiny("mamba", state_size=4, expand=1)
    with pytest.raises(
        ExportError, match=r"'mamba' neither dispatches .* cannot be exported in any"
    ):
        observe_own_attention(model)


def test_attends_eagerly_and_back():
    model = tiny("falcon")
    before = model.config._attn_implementation
    assert before != "eager"
    ids = torch.tensor([[3, 4, 5]])
    theirs = model(ids).logits
    with attending_eagerly(model):
        assert model.transformer.h[0].self_attention.config._attn_implementation == "eager"
        torch.testing.assert_close(model(ids).logits, theirs, atol=1e-5, rtol=0)
    assert model.config._attn_implementation == before


def options(folder, out, dialects) -> ExportOptions:
    return ExportOptions(source=str(folder), out=out, precision="int8", dialects=dialects)


@pytest.mark.parametrize("dialects", [("fused",), ("fused", "standard")])
def test_the_fused_dialect_is_refused_with_what_to_do(make_model, tmp_path, dialects):
    with pytest.raises(ExportError, match=r"'bloom' does not .* export it with --dialect standard"):
        folder = make_model("bloom", n_head=4, n_layer=2)
        export(options(folder, tmp_path / "out", dialects), lambda _: None)
    assert not (tmp_path / "out").exists()


def test_a_quantised_export(make_model, tmp_path):
    folder = make_model("bloom", n_head=4, n_layer=2)
    export(options(folder, tmp_path / "out", ("standard",)), lambda _: None)
    bundle = open_bundle(tmp_path / "out")
    assert bundle.manifest.verification.mean_kl < 0.02
    for stroke in Stroke:
        graph = onnx.load(bundle.graph(stroke), load_external_data=False).graph
        assert {node.domain for node in graph.node} == {""}
        assert sum(node.op_type == "DequantizeLinear" for node in graph.node) >= 8
