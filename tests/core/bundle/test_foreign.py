"""Folders of other tools, opened like bundles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from twostroke.bundle import is_bundle, is_foreign, open_foreign
from twostroke.bundle.manifest import KVLayer
from twostroke.errors import BundleError
from twostroke.types import Stroke

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"


def edit(path: Path, **changes: Any) -> None:
    """Sets keys of a JSON object; None removes one."""
    contents = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: v for key, v in contents.items() if v is not None}))


@pytest.mark.parametrize(
    ("name", "origin", "prefill", "decode", "dialect", "precision", "layer"),
    [
        ("optimum-llama-past", "single", "model", "model", "standard", "fp32", (2, 4)),
        ("optimum-gpt2-past", "single", "model", "model", "standard", "fp32", (4, 4)),
        (
            "optimum-gpt2-pair",
            "pair",
            "decoder_model",
            "decoder_with_past_model",
            "standard",
            "fp32",
            (4, 4),
        ),
        (
            "optimum-llama-merged",
            "merged",
            "decoder_model_merged",
            "decoder_model_merged",
            "standard",
            "fp32",
            (2, 4),
        ),
        ("genai-llama-fp32", "genai", "model", "model", "fused", "fp32", (2, 16)),
        ("genai-llama-int4", "genai", "model", "model", "fused", "int4", (2, 16)),
    ],
)
def test_what_is_known_of_a_folder(name, origin, prefill, decode, dialect, precision, layer):
    assert is_foreign(FOREIGN / name)
    bundle = open_foreign(FOREIGN / name)
    manifest = bundle.manifest
    assert origin in (bundle.origin or "")
    assert bundle.graph(Stroke.PREFILL) == FOREIGN / name / f"{prefill}.onnx"
    assert bundle.graph(Stroke.DECODE) == FOREIGN / name / f"{decode}.onnx"
    assert manifest.dialects == (dialect,)
    assert (manifest.precision, manifest.kv_dtype) == (precision, "float32")
    assert manifest.kv_layers == (KVLayer(num_kv_heads=layer[0], head_dim=layer[1]),) * 2
    assert (manifest.context_tokens, manifest.architecture.vocab_size) == (256, 300)
    assert manifest.architecture.model_type == name.split("-")[1]
    # 2 is the config's and the tokenizer's end, 1 the generation config's: both end a sequence.
    assert manifest.tokens.eos_ids == (1, 2)
    assert manifest.tokens.bos_id == 0
    assert bundle.num_bytes > 90_000
    for file in manifest.files:
        assert (bundle.root / file).is_file()
    assert not is_bundle(bundle.root)


def test_weights_beside_the_graph_belong_to_the_files():
    files = open_foreign(FOREIGN / "genai-llama-fp32").manifest.files
    assert files["model.onnx.data"].num_bytes == 167_552


def test_greedy_unless_a_genai_folder_says_otherwise(copy):
    folder = copy("genai-llama-fp32")
    assert open_foreign(folder).manifest.generation.temperature == 0.0
    path = folder / "genai_config.json"
    edit(path, search={"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9})
    generation = open_foreign(folder).manifest.generation
    assert (generation.temperature, generation.top_k, generation.top_p) == (0.6, 20, 0.9)


def test_the_end_may_be_known_to_the_tokenizer_alone(copy):
    folder = copy("optimum-llama-past")
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    assert open_foreign(folder).manifest.tokens.eos_ids == (2,)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<|im_start|>"})
    assert open_foreign(folder).manifest.tokens.eos_ids == (1,)


def test_an_onnx_file_names_its_graph(copy):
    folder = copy("optimum-llama-past")
    (folder / "model.onnx").rename(folder / "model_a.onnx")
    assert open_foreign(folder).graph(Stroke.DECODE).name == "model_a.onnx"  # the only one
    shutil.copyfile(folder / "model_a.onnx", folder / "model_b.onnx")
    with pytest.raises(BundleError, match=r"several graphs \(model_a\.onnx, model_b\.onnx\)"):
        open_foreign(folder)
    named = open_foreign(folder / "model_b.onnx")
    assert named.graph(Stroke.PREFILL).name == "model_b.onnx"
    assert named.root == folder


def test_either_file_of_a_pair_means_the_pair():
    folder = FOREIGN / "optimum-gpt2-pair"
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        assert open_foreign(folder / name).manifest == open_foreign(folder).manifest


def test_graphs_in_a_folder_of_their_own(copy):
    folder = copy("genai-llama-fp32")
    (folder / "genai_config.json").unlink()
    shutil.copyfile(FOREIGN / "optimum-llama-past" / "config.json", folder / "config.json")
    (folder / "onnx").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (folder / name).rename(folder / "onnx" / name)
    assert is_foreign(folder)
    for path in (folder, folder / "onnx" / "model.onnx"):
        bundle = open_foreign(path)
        assert bundle.root == folder
        assert bundle.graph(Stroke.DECODE) == folder / "onnx" / "model.onnx"
        assert "onnx/model.onnx.data" in bundle.manifest.files


def test_a_checkpoint_beside_the_graphs_is_what_is_meant(copy):
    folder = copy("optimum-llama-past")
    (folder / "model.safetensors").write_bytes(b"")
    assert not is_foreign(folder)
    assert is_foreign(folder / "model.onnx")


def test_other_places_are_not_foreign(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert not is_foreign(tmp_path)
    assert not is_foreign(tmp_path / "config.json")
    assert not is_foreign(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("generation_config.json", {"top_k": 50.5, "temperature": "warm", "do_sample": "yes"}),
        ("generation_config.json", {"eos_token_id": [True, "2", None, [1]]}),
        ("config.json", {"model_type": 7, "num_key_value_heads": "two", "head_dim": -1}),
        ("tokenizer_config.json", {"eos_token": ["a"], "pad_token": {"content": {}}}),
        ("tokenizer.json", {"added_tokens": 3, "model": []}),
        ("tokenizer.json", {"added_tokens": [1, {"content": []}]}),
    ],
)
def test_odd_values_say_nothing(copy, file, changes):
    folder = copy("optimum-llama-past")
    edit(folder / file, **changes)
    manifest = open_foreign(folder).manifest
    assert 2 in manifest.tokens.eos_ids  # the config's
    assert manifest.generation.top_k is None
    assert manifest.kv_layers == (KVLayer(num_kv_heads=2, head_dim=4),) * 2
