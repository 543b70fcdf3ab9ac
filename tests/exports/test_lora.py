"""LoRA adapters: what is merged computes what peft computes unmerged; what does not fit is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle import open_bundle
from twostroke.errors import ExportError, InstallError
from twostroke_export import adapter as adapter_module
from twostroke_export import plugin
from twostroke_export.load import load
from twostroke_export.lora import merge
from twostroke_export.pipeline import export_all
from twostroke_export.source import Source, find, resolve

peft = pytest.importorskip("peft", reason="the package of the extra `export` is missing")

WEIGHTS = "adapter_model.safetensors"
IDS = torch.arange(3, 40)[None]


def save_adapter(base: Path, folder: Path, **config: Any) -> torch.Tensor:
    """Writes an adapter with random weights; answers the logits of base and adapter, unmerged."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    model.name_or_path = "acme/base"
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config)).eval()
    for name, parameter in wrapped.named_parameters():
        if any(part in name for part in ("lora_", "modules_to_save", "trainable_tokens")):
            parameter.data = torch.randn_like(parameter) * 0.1
    with torch.no_grad():
        logits = wrapped(input_ids=IDS).logits
    wrapped.save_pretrained(folder)
    return logits


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def adapted(base: Path, adapter: Path) -> Source:
    return resolve(find(str(base), adapter))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "rank-stabilised": {"r": 4, "use_rslora": True, "target_modules": "all-linear"},
    "patterns": {
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"down_proj": 3},
    },
    "magnitudes": {"target_modules": ["up_proj"], "use_dora": True},
    "tied-head": {"target_modules": ["q_proj", "lm_head"]},
    "tied-embedding": {"target_modules": ["embed_tokens"]},
    "tied-tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 7]},
    "whole-modules": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_computes_what_peft_computes(tiny_llama, tmp_path, kind):
    expected = save_adapter(tiny_llama, tmp_path / "adapter", **KINDS[kind])
    source = adapted(tiny_llama, tmp_path / "adapter")
    loaded = load(source)
    before = logits_of(loaded.model)
    merge(loaded, source.adapter, source.name)
    merged = logits_of(loaded.model)
    assert (merged - before).abs().max() > 0.01
    np.testing.assert_allclose(merged, expected, atol=2e-5)
    assert not any("lora" in name for name, _ in loaded.model.named_modules())
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_weights_stored_the_other_way_round(make_model, tmp_path):
    base = make_model("gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=256)
    options = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
    expected = save_adapter(base, tmp_path / "adapter", **options)
    source = adapted(base, tmp_path / "adapter")
    loaded = load(source)
    merge(loaded, source.adapter, source.name)
    np.testing.assert_allclose(logits_of(loaded.model), expected, atol=2e-5)


@pytest.fixture(scope="module")
def saved(tiny_llama, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "mine"
    save_adapter(tiny_llama, folder, r=4, target_modules=["q_proj", "v_proj"])
    return folder


@pytest.fixture
def adapter(saved, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "mine"))


def refused(adapter: Path, base: Path) -> str:
    with pytest.raises(ExportError) as caught:
        find(str(base), adapter)
    message = str(caught.value)
    assert "\n" not in message
    assert str(adapter) in message
    return message


def edit(adapter: Path, **changes: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tells_its_name_its_base_and_its_hash(saved, tiny_llama):
    source = find(str(tiny_llama), saved)
    assert source.full_name == "tiny-llama-mine"
    found = source.adapter
    assert source.facts["adapter"] == found.facts
    assert {key: found.facts[key] for key in ("name", "base")} == {"name": "mine", "base": "base"}
    assert len(found.facts["sha256"]) == 64
    assert "model.layers.1.self_attn.v_proj" in found.modules()


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_a_missing_file(adapter, tiny_llama, name):
    (adapter / name).unlink()
    assert f"has no {name}" in refused(adapter, tiny_llama)


def test_no_folder(tmp_path, tiny_llama):
    assert "There is no adapter at" in refused(tmp_path / "nothing", tiny_llama)


def test_a_whole_model(tiny_llama):
    assert "is a whole model, no adapter" in refused(tiny_llama, tiny_llama)


def test_truncated_weights(adapter, tiny_llama):
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:-10])
    assert f"{WEIGHTS} is truncated" in refused(adapter, tiny_llama)


def test_another_kind_of_adapter(adapter, tiny_llama):
    edit(adapter, peft_type="IA3")
    assert "an adapter of the kind 'IA3'; only LORA is merged" in refused(adapter, tiny_llama)


@pytest.mark.parametrize(
    "option",
    [{"alora_invocation_tokens": [1]}, {"layer_replication": [[0, 1]]}, {"ensure_weight_tying": 1}],
)
def test_what_cannot_be_merged(adapter, tiny_llama, option):
    edit(adapter, **option)
    assert f"asks for {next(iter(option))}, which cannot be merged" in refused(adapter, tiny_llama)


def test_another_base_is_told_from_the_headers_alone(adapter, make_model):
    base = make_model("llama", hidden_size=96, num_attention_heads=6)
    message = refused(adapter, base)
    assert "q_proj is 96 x 96 there and 64 x 64 here. It was trained on base" in message


def test_no_peft(adapter, tiny_llama, monkeypatch):
    monkeypatch.setattr(adapter_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InstallError, match="'peft', which is not installed"):
        find(str(tiny_llama), adapter)


def misfit(adapter: Path, base: Path) -> str:
    source = adapted(base, adapter)
    with pytest.raises(ExportError) as caught:
        merge(load(source), source.adapter, source.name)
    assert "\n" not in str(caught.value)
    assert str(adapter) in str(caught.value)
    return str(caught.value)


def test_a_base_with_fewer_layers(adapter, make_model):
    message = misfit(adapter, make_model("llama", num_hidden_layers=1))
    assert "that model has no model.layers.1.self_attn.q_proj. It was trained on base" in message


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_tensors_that_the_config_does_not_speak_of(adapter, tiny_llama, change):
    tensors = load_file(adapter / WEIGHTS)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    if change == "fewer":
        del tensors[name]
    else:
        tensors[name.replace("q_proj", "k_proj")] = tensors[name].clone()
    save_file(tensors, adapter / WEIGHTS, metadata={"format": "pt"})
    assert "is on one side only" in misfit(adapter, tiny_llama)


def test_a_rank_that_is_not_the_weights(adapter, tiny_llama):
    edit(adapter, r=2)
    assert "could not be merged" in misfit(adapter, tiny_llama)


def test_weights_that_are_no_numbers(adapter, tiny_llama):
    tensors = {name: tensor * float("nan") for name, tensor in load_file(adapter / WEIGHTS).items()}
    save_file(tensors, adapter / WEIGHTS, metadata={"format": "pt"})
    assert "could not be merged" in misfit(adapter, tiny_llama)


def test_an_export_is_one_of_the_merged_model(saved, tiny_llama, tmp_path):
    options = ExportOptions(str(tiny_llama), tmp_path / "out", "fp32", adapter=saved)
    plugin.export(options, lambda _: None)
    manifest = open_bundle(tmp_path / "out").manifest
    assert manifest.name == "tiny-llama-mine"
    assert manifest.source["adapter"]["name"] == "mine"
    assert len(manifest.source["adapter"]["sha256"]) == 64
    verification = manifest.verification
    assert verification.num_argmax_equal == verification.num_steps == 17
    export_all(str(tiny_llama), {"fp32": tmp_path / "base"})
    base = open_bundle(tmp_path / "base").manifest
    assert manifest.self_check.top_logits != base.self_check.top_logits
