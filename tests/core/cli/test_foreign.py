"""The commands take another tool's folder wherever they take a bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from twostroke.cli import main

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
NAMES = ["optimum-gpt2-pair", "genai-llama-int4"]


@pytest.mark.parametrize("name", NAMES)
def test_verify_says_that_nothing_is_recorded(name, capsys):
    assert main(["verify", str(FOREIGN / name)]) == 0
    files, graphs, answers, last = capsys.readouterr().out.splitlines()
    assert files.startswith("files: ")
    assert files.endswith("bytes, by size alone")
    assert "CPUExecutionProvider" in graphs
    assert answers.startswith("answers: ")
    assert answers.endswith("with no answers recorded")
    assert last == f"{FOREIGN / name}: ok"


@pytest.mark.parametrize("name", NAMES)
def test_generate(name, capsys):
    arguments = ["generate", "--model", str(FOREIGN / name), "--max-tokens", "4", "the engine"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip()


def test_check_names_what_a_start_would_refuse(tmp_path, capsys):
    folder = Path(shutil.copytree(FOREIGN / "optimum-gpt2-pair", tmp_path / "pair"))
    config = tmp_path / "deploy.yaml"
    config.write_text("models: [{name: pair, source: ./pair}]\n", encoding="utf-8")
    assert main(["config", "check", str(config)]) == 0
    lost = folder / "decoder_model.onnx"
    lost.unlink()
    capsys.readouterr()
    assert main(["config", "check", str(config)]) == 2
    assert f"models[0].source: {lost} is missing" in capsys.readouterr().err
