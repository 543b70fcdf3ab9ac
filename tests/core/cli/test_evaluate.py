"""`twostroke evaluate`, on bundles that the echo backend runs."""

from __future__ import annotations

import json

import pytest

from twostroke.bundle import open_bundle
from twostroke.cli import main
from twostroke.testing.onnx_bundles import make_onnx_bundle


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text("A kettle boils sooner with its lid on. " * 10)
    return path


@pytest.fixture
def bundle(tmp_path):
    return make_onnx_bundle(tmp_path / "tiny")


def test_a_table_and_a_hint(bundle, text, capsys):
    assert main(["evaluate", str(bundle), str(text), "--tokens", "50"]) == 0
    told = capsys.readouterr()
    header, row, footer, hint = told.out.splitlines()
    assert header.startswith("bundle")
    assert row.split()[:2] == ["tiny", "fp32"]
    assert footer == "49 tokens of prose.txt in windows of 50, on cpu"
    assert hint.startswith("hint: name a --source")
    assert "evaluate tiny" in told.err
    assert open_bundle(bundle).manifest.evaluations == ()


def test_json_and_save(bundle, text, capsys):
    command = ["evaluate", str(bundle), str(text), "--source", str(bundle), "--save", "--json"]
    assert main(command) == 0
    (told,) = json.loads(capsys.readouterr().out)
    (kept,) = open_bundle(bundle).manifest.evaluations
    assert told["perplexity"] == kept.perplexity > 1
    assert (kept.source, kept.mean_kl, kept.top1_agreement) == ("tiny fp32", 0.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "prose.txt"], "nowhere is not a folder"),
        (["tiny", "nothing.txt"], "nothing.txt cannot be read"),
        (["tiny", "prose.txt", "--source", "no-such-model"], "There is no model at"),
        (["tiny", "prose.txt", "--backend", "gpu"], "There is no backend 'gpu'"),
    ],
)
def test_what_is_wrong_is_told(bundle, text, capsys, monkeypatch, arguments, sentence):
    monkeypatch.chdir(bundle.parent)
    assert main(["evaluate", *arguments]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.out == ""
    assert bundle.is_dir()
    assert text.is_file()


@pytest.mark.parametrize("number", ["1", "0", "-3"])
def test_too_few_tokens_are_refused_at_once(number, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "tiny", "prose.txt", "--tokens", number])
    assert "must be 2 or more" in capsys.readouterr().err
