"""Folders that cannot be served are refused in a sentence that names the file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from twostroke.bundle import open_foreign
from twostroke.errors import BundleError


def edit(path: Path, **changes: Any) -> None:
    """Sets keys of a JSON object; None removes one."""
    contents = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: v for key, v in contents.items() if v is not None}))


def refusal(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_foreign(path)
    return str(caught.value)


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
