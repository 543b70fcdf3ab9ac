"""Tokenizer files, chat template, special ids and defaults in the bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from twostroke.errors import ExportError
from twostroke_export.assets import generation_defaults, special_ids, write_assets
from twostroke_export.load import Loaded, load
from twostroke_export.source import Source, resolve


def loaded(config_eos=None, generation_eos=None, tokenizer_eos=None, **tokenizer) -> Loaded:
    model = SimpleNamespace(
        config=SimpleNamespace(eos_token_id=config_eos, pad_token_id=None),
        generation_config=SimpleNamespace(eos_token_id=generation_eos),
        get_input_embeddings=lambda: SimpleNamespace(weight=SimpleNamespace(shape=(100, 8))),
    )
    ids = {"bos_token_id": None, "pad_token_id": None, **tokenizer}
    return Loaded(model, SimpleNamespace(eos_token_id=tokenizer_eos, **ids))


def source(**metadata: int) -> Source:
    named = {f"tokenizer.ggml.{name}_token_id": value for name, value in metadata.items()}
    return Source(Path(), "mine", gguf_metadata=named)


def test_eos_is_the_union_of_all_sources():
    tokens = special_ids(source(eot=7, eom=8, eos=2), loaded(2, [3, 4], 5))
    assert tokens.eos_ids == (2, 3, 4, 5, 7, 8)


def test_bos_and_pad_come_from_the_tokenizer_first():
    tokens = special_ids(source(bos=9), loaded(bos_token_id=1, pad_token_id=0))
    assert (tokens.bos_id, tokens.pad_id, tokens.eos_ids) == (1, 0, ())
    assert special_ids(source(bos=9), loaded()).bos_id == 9


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ExportError, match="special id 100, but its vocabulary has only 100 ids"):
        special_ids(source(), loaded(100))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True}, (0.6, 20, 0.9)),
        ({"do_sample": False, "temperature": 0.7}, (0.0, None, None)),
        ({"top_k": None, "temperature": True}, (None, None, None)),
    ],
)
def test_generation_defaults(tmp_path, config, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    found = generation_defaults(Source(tmp_path, "mine"))
    assert (found.temperature, found.top_k, found.top_p) == expected


def test_no_generation_config_recommends_nothing(tmp_path):
    assert set(generation_defaults(Source(tmp_path, "mine")).model_dump().values()) == {None}


def test_files_are_copied_as_they_are(tiny_llama, tmp_path):
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    out = tmp_path / "out"
    out.mkdir()
    found = resolve(str(folder))
    write_assets(found, load(found), out)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert (out / "chat_template.jinja").read_text() == template


def test_no_chat_template_writes_none(tiny_llama, tmp_path):
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    out.mkdir()
    found = resolve(str(folder))
    write_assets(found, load(found), out)
    assert not (out / "chat_template.jinja").exists()
