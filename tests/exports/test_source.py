"""What cannot be exported is said in one sentence that names the file, before anything heavy."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from twostroke.errors import ExportError, InstallError, TwostrokeError
from twostroke_export.source import resolve


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def refused(source: Path | str, error: type[TwostrokeError] = ExportError) -> str:
    with pytest.raises(error) as caught:
        resolve(str(source))
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_good_folder(folder):
    source = resolve(str(folder))
    assert source.folder == folder
    assert source.name == "model"
    assert source.gguf_file is None
    assert source.facts["num_shards"] == 1
    assert source.limit_tokens == 256


def test_a_missing_folder(tmp_path):
    assert "nothing-here" in refused(tmp_path / "nothing-here")


def test_a_missing_gguf_file(tmp_path):
    assert "model.gguf" in refused(tmp_path / "model.gguf")


def test_a_missing_package():
    assert "not_there_at_all" in refused("package:not_there_at_all/x.gguf", InstallError)


def test_a_folder_without_a_config(tmp_path):
    assert "has no config.json" in refused(tmp_path)


def test_a_bundle(tmp_path):
    (tmp_path / "bundle.json").write_text("{}")
    assert "is a bundle already" in refused(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "neither a folder nor a .gguf file" in refused(tmp_path / "model.bin")


@pytest.mark.parametrize("text", ["{", "[]", "\udc80"])
def test_a_damaged_config(folder, text):
    (folder / "config.json").write_text(text, errors="surrogateescape")
    assert "config.json" in refused(folder)


def test_a_config_with_wrong_values(folder):
    edit(folder / "config.json", hidden_size="large")
    assert "config.json is not valid" in refused(folder)


def test_an_unknown_architecture(folder):
    edit(folder / "config.json", model_type="perceptron9000")
    assert "'perceptron9000' model, which transformers does not know" in refused(folder)


def test_no_architecture(folder):
    edit(folder / "config.json", model_type=None)
    assert "names no model_type" in refused(folder)


def test_an_encoder(folder):
    edit(folder / "config.json", model_type="t5")
    assert "'t5'" in refused(folder)


def test_quantised_weights(folder):
    edit(folder / "config.json", quantization_config={"quant_method": "awq"})
    assert "already quantised (awq)" in refused(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(folder)


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    message = refused(folder)
    assert "model.safetensors is truncated" in message
    assert f"{path.stat().st_size:,} bytes instead of {path.stat().st_size + 1000:,}" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"\xff" * 64, struct.pack("<Q", 8) + b"notjson!", struct.pack("<Q", 2) + b"[]"],
)
def test_damaged_weights(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors is not a safetensors file" in refused(folder)


def test_a_missing_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    assert "lacks model-00002-of-00002.safetensors" in refused(folder)
    index.write_text(json.dumps({"weight_map": {"a": shards["a"]}}))
    assert resolve(str(folder)).facts["num_shards"] == 1


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(folder)


def test_several_gguf_files_are_not_guessed_between(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "has no config.json" in refused(tmp_path)
