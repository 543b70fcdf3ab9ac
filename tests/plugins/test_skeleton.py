"""`twostroke plugins new`: what it writes can be installed and passes the kit unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from twostroke.cli import main
from twostroke.errors import ConfigError
from twostroke.skeleton import write_skeleton


def run(*arguments: object, cwd: Path, site: Path | None = None) -> str:
    paths = [*([str(site)] if site else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_skeleton_installs_and_passes_the_kit_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "acme_npu"]) == 0
    assert "cd twostroke-acme-npu && pip install" in capsys.readouterr().out
    folder, site = tmp_path / "twostroke-acme-npu", tmp_path / "site"
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", site)
    run("pip", "--disable-pip-version-check", "install", *offline, folder, cwd=tmp_path)
    listed = run("twostroke", "plugins", cwd=tmp_path, site=site)
    assert "loaded  acme_npu (twostroke-acme-npu 0.1.0): backend acme_npu" in listed
    said = run("pytest", "-p", "no:cacheprovider", cwd=folder, site=site)
    assert "acme_npu: passes (" in said
    assert " failed" not in said


def test_every_file_is_filled_in(tmp_path):
    folder = write_skeleton("mine", tmp_path / "made")
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    assert set(files) == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "tests/test_twostroke_mine.py",
        "twostroke_mine.py",
    }
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    assert [name for name, text in texts.items() if "$" in text] == []
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"]["twostroke"] == {"mine": "twostroke_mine"}
    for name in ("twostroke_mine.py", "tests/test_twostroke_mine.py"):
        compile(texts[name], name, "exec")


@pytest.mark.parametrize("name", ["", "Mine", "2nd", "my-npu", "a__b", "class", "my npu", "_x"])
def test_a_name_that_cannot_be_one(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be a backend's name"):
        write_skeleton(name, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_nothing_is_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    assert main(["plugins", "new", "mine", "--out", "made"]) == 0  # empty: fine
    capsys.readouterr()
    assert main(["plugins", "new", "mine", "--out", "made"]) == 2
    assert "made exists and is not empty" in capsys.readouterr().err


def test_a_name_that_is_taken(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "cpu"]) == 2
    assert "there is a backend 'cpu' already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
