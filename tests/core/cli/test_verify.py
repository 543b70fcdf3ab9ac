from __future__ import annotations

import shutil

import twostroke.verify
from twostroke.cli import main


def test_it_prints_what_was_checked(monkeypatch, tmp_path, capsys):
    lines = {tmp_path: ["files: 7", "answers: all 16 tokens as at export"]}
    monkeypatch.setattr(twostroke.verify, "verify_bundle", lines.__getitem__)
    assert main(["verify", str(tmp_path)]) == 0
    expected = ["files: 7", "answers: all 16 tokens as at export", f"{tmp_path}: ok"]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_file_that_was_cut_is_named(tmp_path, echo_bundle, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(echo_bundle, copy)
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1])
    assert main(["verify", str(copy)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"twostroke: error: {tokenizer} ")


def test_what_is_no_bundle_is_told(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
