"""Folders of other tools, opened like bundles or refused in a sentence that names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twostroke.bundle import is_bundle, is_foreign, open_foreign
from twostroke.bundle.manifest import KVLayer
from twostroke.errors import BundleError
from twostroke.types import Stroke

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
Copy = Callable[[str], Path]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of one of the folders, to be damaged."""
    return lambda name: Path(shutil.copytree(FOREIGN / name, tmp_path / name))


def edit(path: Path, **changes: Any) -> None:
    """Sets keys of a JSON object; None removes one."""
    contents = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: v for key, v in contents.items() if v is not None}))


def refusal(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_foreign(path)
    return str(caught.value)


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
    assert "several graphs (model_a.onnx, model_b.onnx)" in refusal(folder)
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


# --- refusals -------------------------------------------------------------------------------


def test_a_graph_without_a_cache(copy):
    told = refusal(copy("optimum-llama-no-past"))
    assert "model.onnx keeps no cache" in told
    assert "text-generation-with-past" in told


@pytest.mark.parametrize(
    ("half", "other"),
    [
        ("decoder_model.onnx", "decoder_with_past_model.onnx"),
        ("decoder_with_past_model.onnx", "decoder_model.onnx"),
    ],
)
def test_half_of_a_pair(copy, half, other):
    folder = copy("optimum-gpt2-pair")
    (folder / other).unlink()
    assert f"{folder / other} is missing: {half} is half of a pair" in refusal(folder)


def test_weights_that_are_missing_or_cut(copy):
    folder = copy("genai-llama-fp32")
    data = folder / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    assert f"{data} holds 1,000 bytes, but model.onnx keeps weights in it" in refusal(folder)
    data.unlink()
    assert f"{data} is missing. model.onnx needs it." in refusal(folder)


def test_weights_outside_of_the_folder(copy):
    folder = copy("genai-llama-fp32")
    graph = folder / "model.onnx"
    inside, outside = b"model.onnx.data", b"../el.onnx.data"
    graph.write_bytes(graph.read_bytes().replace(inside, outside))
    shutil.copyfile(folder / "model.onnx.data", folder.parent / "el.onnx.data")
    assert "'../el.onnx.data', a path outside" in refusal(folder)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_links(copy, name, link):
    folder = copy("genai-llama-fp32")
    elsewhere = folder.parent / "elsewhere"
    (folder / name).rename(elsewhere)
    link(elsewhere, folder / name)
    assert f"{folder / name} is a {'symbolic' if link is os.symlink else 'hard'} link" in refusal(
        folder
    )


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("optimum-llama-past", "tokenizer.json"),
        ("optimum-llama-past", "config.json"),
        ("genai-llama-fp32", "model.onnx"),
        ("genai-llama-fp32", "tokenizer.json"),
    ],
)
def test_a_missing_file_is_named(copy, name, file):
    folder = copy(name)
    (folder / file).unlink()
    assert file in refusal(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"a":' * 100_000])
def test_a_config_that_is_no_json_object(copy, text):
    folder = copy("optimum-llama-past")
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert str(folder / "config.json") in refusal(folder)


def test_a_context_that_nobody_tells(copy):
    folder = copy("optimum-llama-past")
    edit(folder / "config.json", max_position_embeddings=None)
    assert "does not say max_position_embeddings" in refusal(folder)


def test_an_end_outside_of_the_vocabulary(copy):
    folder = copy("optimum-llama-past")
    edit(folder / "generation_config.json", eos_token_id=[2, 300])
    assert "the special id 300, but the vocabulary has only 300 ids" in refusal(folder)


def test_a_seq2seq_model_of_optimum(copy):
    folder = copy("optimum-gpt2-pair")
    edit(folder / "config.json", is_encoder_decoder=True, model_type="t5")
    assert "describes an encoder-decoder model (t5)" in refusal(folder)
    edit(folder / "config.json", is_encoder_decoder=False)
    shutil.copyfile(folder / "decoder_model.onnx", folder / "encoder_model.onnx")
    assert "encoder_model.onnx belongs to an encoder-decoder model" in refusal(folder)


@pytest.mark.parametrize(
    ("part", "kind", "what"),
    [
        ("vision", "phi3v", "a vision model (phi3v"),
        ("encoder", "whisper", "an encoder-decoder model (whisper"),
        ("speech", "phi4mm", "a speech model (phi4mm"),
    ],
)
def test_other_kinds_of_genai_models(copy, part, kind, what):
    folder = copy("genai-llama-fp32")
    path = folder / "genai_config.json"
    model = json.loads(path.read_text())["model"]
    edit(path, model={**model, part: {"filename": "other.onnx"}, "type": kind})
    assert what in refusal(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pipeline": [{}]}, "cuts the decoder into a pipeline"),
        ({"inputs": {"input_ids": "tokens"}}, "calls input_ids 'tokens'"),
        ({"outputs": {"present_key_names": "k_%d"}}, "calls present_key_names 'k_%d'"),
        ({"filename": None}, "names no file of the decoder"),
        ({"filename": "../model.onnx"}, "a path outside"),
    ],
)
def test_a_genai_decoder_that_cannot_be_fed(copy, change, told):
    folder = copy("genai-llama-fp32")
    path = folder / "genai_config.json"
    model = json.loads(path.read_text())["model"]
    edit(path, model={**model, "decoder": {**model["decoder"], **change}})
    assert told in refusal(folder)


def test_a_graph_of_another_task(copy):
    folder = copy("optimum-llama-past")
    graph = folder / "model.onnx"
    graph.write_bytes(graph.read_bytes().replace(b"logits", b"scores"))
    assert f"{graph} is no language model's graph" in refusal(folder)
