"""Bad sources through the command: a sentence, exit code 2, nothing written, torch not touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory) -> dict[str, str]:
    """Variables under which importing torch is a loud mistake."""
    site = tmp_path_factory.mktemp("site")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
    paths = [str(site), *(path for path in sys.path if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_PROXY": "127.0.0.1"} | {
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nobody listens there
        "HF_HUB_ETAG_TIMEOUT": "1",
    }


def edit(path: Path, change: Callable[[dict], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def wrong_index(folder: Path) -> None:
    index = {"weight_map": {"nothing": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lost_shard(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def only_adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base"}')


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda f: [path.unlink() for path in f.iterdir()], "config.json"),
    "header": (lambda f: cut(f / "model.safetensors", 100), "model.safetensors is truncated"),
    "data": (lambda f: cut(f / "model.safetensors", 200_000), "model.safetensors is truncated"),
    "index": (wrong_index, "model.safetensors.index.json says that nothing"),
    "shard": (lost_shard, "lacks model-00002-of-00002.safetensors"),
    "architecture": (
        lambda f: edit(f / "config.json", lambda c: c.update(model_type="mystery")),
        "'mystery' model",
    ),
    "tokenizer": (
        lambda f: edit(f / "tokenizer.json", lambda t: t["model"]["vocab"].update(zz=4000)),
        "tokenizer.json has the id 4000",
    ),
    "adapter": (only_adapter, "holds only an adapter"),
}


def refused(source: str, tmp_path: Path, variables: dict[str, str]) -> str:
    """What the command says, behind its lines of progress."""
    out = tmp_path / "bundles" / "out"
    command = [sys.executable, "-m", "twostroke", "export", source, str(out)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert not out.parent.exists()
    *progress, told = ran.stderr.splitlines()
    assert all("%" in line for line in progress)
    assert told.startswith("twostroke: error: ")
    return told


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder(tiny_llama, tmp_path, without_torch, damage):
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    do, expected = DAMAGES[damage]
    do(folder)
    told = refused(str(folder), tmp_path, without_torch)
    assert expected in told
    assert str(folder) in told


def test_a_hub_id_that_cannot_be_reached(tmp_path, without_torch):
    assert "acme/unknown" in refused("acme/unknown", tmp_path, without_torch)


def test_a_file_that_only_looks_like_gguf(tmp_path, without_torch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    assert "model.gguf is truncated or damaged" in refused(str(path), tmp_path, without_torch)
