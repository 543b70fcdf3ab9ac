"""Loading: what transformers only warns about is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from twostroke.errors import ExportError
from twostroke_export.load import load
from twostroke_export.source import resolve


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def test_in_fp32_and_eager(folder, capfd):
    loaded = load(resolve(str(folder)))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.model.config._attn_implementation == "eager"
    assert not loaded.model.training
    assert loaded.vocab_size == 320
    assert capfd.readouterr() == ("", "")  # no bars, no advice


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_parameters_are_not_the_file_itself(folder):
    loaded = load(resolve(str(folder)))
    assert loaded.vocab_size == 320
    assert str(folder) not in Path("/proc/self/maps").read_text()


def test_half_precision_weights_are_widened(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    halves = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(halves, path, metadata={"format": "pt"})
    model = load(resolve(str(folder))).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_missing_weights_are_not_made_up(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ExportError, match=r"lacks the weight model\.layers\.1\.mlp\.up_proj"):
        load(resolve(str(folder)))


def test_weights_of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(ExportError, match="model could not be loaded"):
        load(resolve(str(folder)))


def test_a_tokenizer_of_another_model(folder):
    source = resolve(str(folder))
    config = json.loads((folder / "tokenizer.json").read_text())
    config["model"]["vocab"]["zzz"] = 4000
    (folder / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="has the id 4000 but the model only takes ids below 320"):
        load(source)


def test_a_damaged_tokenizer(folder):
    source = resolve(str(folder))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match="model could not be loaded"):
        load(source)
