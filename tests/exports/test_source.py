"""What cannot be exported is said in one sentence that names the file, before anything heavy."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from twostroke.errors import ExportError, InstallError, TwostrokeError
from twostroke_export.known import causal_architectures, gguf_architectures
from twostroke_export.source import find, resolve


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def refused(source: Path | str, error: type[TwostrokeError] = ExportError, check=find) -> str:
    with pytest.raises(error) as caught:
        check(str(source))
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_good_folder(folder):
    assert find(str(folder)).limit_tokens is None
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


def test_graphs_of_another_tool(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "holds ONNX graphs already; serve it as it is" in refused(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "neither a folder nor a .gguf file" in refused(tmp_path / "model.bin")


@pytest.mark.parametrize("text", ["{", "[]", "\udc80"])
def test_a_damaged_config(folder, text):
    (folder / "config.json").write_text(text, errors="surrogateescape")
    assert "config.json" in refused(folder)


def test_a_config_with_wrong_values(folder):
    edit(folder / "config.json", hidden_size="large")
    assert "config.json is not valid" in refused(folder, check=resolve)


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


def test_a_truncated_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert "model.safetensors is truncated: 100 bytes instead of" in refused(folder)


def test_a_header_that_contradicts_itself(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    changed = content.replace(b'"shape":[320,64]', b'"shape":[321,64]')
    assert changed != content
    path.write_bytes(changed)
    assert "gives model.embed_tokens.weight 81,920 bytes, which F32 of shape" in refused(folder)


def test_the_pointer_that_git_lfs_leaves(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"
    (folder / "model.safetensors").write_text(pointer)
    assert "run `git lfs pull`" in refused(folder)


def test_a_missing_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    present, absent = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    name = "model.norm.weight"
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: present, "b": absent}}))
    assert "lacks model-00002-of-00002.safetensors" in refused(folder)
    index.write_text(json.dumps({"weight_map": {name: present}}))
    assert resolve(str(folder)).facts["num_shards"] == 1


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("{", "cannot be read as JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
        ('{"weight_map": {}}', "lacks any shard"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "lies outside of its folder"),
        ('{"weight_map": {"a": "model.safetensors"}}', "says that a lies in model.safetensors"),
    ],
)
def test_a_wrong_index(folder, index, expected):
    (folder / "model.safetensors.index.json").write_text(index)
    message = refused(folder)
    assert "model.safetensors.index.json" in message
    assert expected in message


def test_an_adapter_without_its_base(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")
    edit(folder / "adapter_config.json", base_model_name_or_path="acme/base")
    assert "holds only an adapter; name its base model (acme/base)" in refused(folder)


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(folder)


def test_a_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is not a tokenizer" in refused(folder)


def test_a_tokenizer_of_another_model(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["zzz"] = 4000
    path.write_text(json.dumps(tokenizer))
    message = refused(folder)
    assert "tokenizer.json has the id 4000 but the model only takes ids below 320" in message


def test_several_gguf_files_are_not_guessed_between(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "holds 2 .gguf files (a.gguf, b.gguf); name one of them" in refused(tmp_path)


def test_knows_what_transformers_knows():
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert causal_architectures() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert gguf_architectures() == set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}
