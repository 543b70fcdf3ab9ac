"""GGUF files: their metadata, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twostroke.bundle import open_bundle
from twostroke.errors import ExportError
from twostroke_export.pipeline import export_all
from twostroke_export.source import find, resolve
from twostroke_export.testing.tiny_gguf import FFN, HIDDEN, Kind, save_tiny_gguf


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory) -> Path:
    return save_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def refused(path: Path) -> str:
    with pytest.raises(ExportError) as caught:
        find(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_exports_with_template_and_special_ids_of_its_metadata(tiny_gguf, tmp_path):
    seen = []
    export_all(str(tiny_gguf), {"fp32": tmp_path / "out"}, on_progress=seen.append)
    bundle = open_bundle(tmp_path / "out")
    manifest = bundle.manifest
    assert manifest.name == "tiny"
    assert manifest.context_tokens == 128
    assert manifest.tokens.eos_ids == (0, 2)
    assert manifest.tokens.bos_id == 1
    assert manifest.source["kind"] == "gguf"
    assert manifest.source["file"] == "tiny.gguf"
    assert manifest.source["num_bytes"] == tiny_gguf.stat().st_size
    assert bundle.file("chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert bundle.file("tokenizer.json") is not None
    assert len({stage.fraction for stage in seen if stage.stage == "load"}) > 5  # it moves


def test_a_folder_with_one_gguf_file_is_that_file(tiny_gguf):
    source = resolve(str(tiny_gguf.parent))
    assert source.gguf_file == "tiny.gguf"
    assert source.gguf_metadata["general.architecture"] == "llama"
    assert source.limit_tokens == 128


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file(tiny_gguf, tmp_path, share):
    content = tiny_gguf.read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(content[: int(len(content) * share)])
    assert "short.gguf is truncated or damaged" in refused(path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04" + b"0" * 100])
def test_something_else(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    assert "other.gguf is not a GGUF file" in refused(path)


def test_an_unknown_architecture(tmp_path):
    path = save_tiny_gguf(tmp_path / "rwkv.gguf", architecture="rwkv99")
    assert "'rwkv99' model, an architecture that transformers does not read" in refused(path)


def test_one_of_several_shards(tmp_path):
    path = save_tiny_gguf(tmp_path / "part-00001-of-00003.gguf", num_splits=3)
    assert "part-00001-of-00003.gguf is one of 3 shards; merge them" in refused(path)


def test_a_type_that_is_known_but_not_read(tmp_path):
    wide = np.zeros((HIDDEN, FFN), np.float64), Kind.F64
    path = save_tiny_gguf(tmp_path / "wide.gguf", stored={"blk.0.ffn_down.weight": wide})
    assert "wide.gguf holds tensors of the type F64, which cannot be read" in refused(path)


def test_a_type_that_is_not_known(tiny_gguf, tmp_path):
    content = bytearray(tiny_gguf.read_bytes())
    name = b"blk.0.ffn_down.weight"
    # Behind the name: the number of dimensions (4 bytes), two of them (8 bytes each), the type.
    kind = content.index(name) + len(name) + 4 + 2 * 8
    assert content[kind : kind + 4] == bytes(4)
    content[kind] = 99
    path = tmp_path / "newer.gguf"
    path.write_bytes(content)
    assert "newer.gguf holds tensors of a type that the gguf package does not" in refused(path)
    assert "number 99" in refused(path)


def test_a_tokenizer_of_another_model(tmp_path):
    path = save_tiny_gguf(tmp_path / "mixed.gguf", extra_tokens=9)
    assert "has a tokenizer of 270 ids but an embedding of only 261" in refused(path)
