from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.cli import main
from twostroke.config.json_schema import json_schema

ROOT = Path(__file__).resolve().parents[3]


def test_check_says_what_the_file_holds(capsys):
    assert main(["config", "check", str(ROOT / "config.yaml")]) == 0
    told = capsys.readouterr()
    first, last = told.out.splitlines()
    expected = "ok, 1 model: smollm2-135m-instruct (int8, backend auto)"
    assert first == f"{ROOT / 'config.yaml'}: {expected}"
    assert last == "not checked: devices, backend options, memory"
    assert told.err == ""


def test_check_tells_every_problem_and_exits_with_2(tmp_path, capsys):
    path = tmp_path / "deploy.yaml"
    path.write_text("server: {prot: 1}\nmodels: []\n", encoding="utf-8")
    assert main(["config", "check", str(path), "--set", "server.port=x"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    first, *problems = told.err.splitlines()
    assert first == "twostroke: error: the configuration has 3 problems:"
    assert [problem.split(": ")[1] for problem in problems] == [
        "server.prot",
        "models",
        "server.port",
    ]
    assert problems[0].startswith(f"{path}:1: ")
    assert problems[2].startswith("--set server.port=x: ")


def test_check_names_backends_and_sources_that_do_not_exist(tmp_path, capsys):
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "models:\n"
        "  - {name: a, source: ./nowhere, backend: cdua, fallback: [cpu, auto]}\n"
        "  - {name: b, source: package:no_such_package/x.gguf, prefill: {backend: cup}}\n"
        "  - {name: c, source: acme/tiny, decode: {backend: cuda}}\n",
        encoding="utf-8",
    )
    assert main(["config", "check", str(path)]) == 2
    first, *problems = capsys.readouterr().err.splitlines()
    assert first == "twostroke: error: the configuration has 5 problems:"
    assert problems[0].startswith(f"models[0].source: There is no model at {tmp_path / 'nowhere'}")
    assert problems[1].startswith("models[0].backend: There is no backend 'cdua'. Did you mean")
    assert "'cuda'" in problems[1]
    assert problems[2].startswith("models[0].fallback[1]: auto is no backend")
    assert problems[3].startswith("models[1].source: The model lies in the Python package")
    assert problems[4].startswith("models[1].prefill.backend: There is no backend 'cup'.")


def test_check_refuses_a_backend_whose_plugin_is_blocked(tmp_path, capsys):
    arguments = ["--set", f"models.0.source={tmp_path}", "--set", "models.0.backend=cpu"]
    block = ["--set", 'plugins.block=["cpu"]']
    path = tmp_path / "deploy.yaml"
    path.write_text("models: [{name: a, source: .}]\n", encoding="utf-8")
    assert main(["config", "check", str(path), *arguments, *block]) == 2
    assert "models[0].backend: The backend 'cpu' cannot be used" in capsys.readouterr().err


def test_check_says_that_hub_ids_are_not_looked_up(tmp_path, capsys):
    path = tmp_path / "deploy.yaml"
    path.write_text("models: [{name: a, source: acme/tiny}]\n", encoding="utf-8")
    assert main(["config", "check", str(path)]) == 0
    assert "not checked: whether the hub has acme/tiny (no such" in capsys.readouterr().out


def test_check_reads_the_files_of_the_server(tmp_path, capsys):
    path = tmp_path / "deploy.yaml"
    tls = "tls: {certificate: c.pem, key: k.pem}"
    path.write_text(
        f"server: {{host: 0.0.0.0, key_file: keys.json, {tls}}}\nmodels: [{{name: a, source: .}}]\n"
    )
    assert main(["config", "check", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"server.key_file: {tmp_path / 'keys.json'}: no such file" in told
    assert f"server.tls.certificate: {tmp_path / 'c.pem'}: no such file" in told
    assert "server.insecure" not in told
    path.write_text("server: {host: 0.0.0.0}\nmodels: [{name: a, source: .}]\n")
    assert main(["config", "check", str(path)]) == 2
    assert "server.insecure: [keys]" in capsys.readouterr().err


def test_schema_prints_the_schema(capsys):
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


@pytest.mark.parametrize("path", sorted((ROOT / "examples/deployments").glob("*.yaml")), ids=str)
def test_the_example_deployments_are_right(path, monkeypatch, capsys):
    monkeypatch.setenv("TWOSTROKE_KEY", "secret")
    assert main(["config", "check", str(path)]) == 0
    assert "secret" not in capsys.readouterr().out


def test_the_production_example_does_not_start_without_its_key(monkeypatch, capsys):
    monkeypatch.delenv("TWOSTROKE_KEY", raising=False)
    path = ROOT / "examples/deployments/production.yaml"
    assert main(["config", "check", str(path)]) == 2
    assert "the environment variable TWOSTROKE_KEY is not set" in capsys.readouterr().err


def test_the_systemd_unit_runs_commands_that_exist():
    unit = (ROOT / "examples/deployments/twostroke.service").read_text(encoding="utf-8")
    commands = [
        line.split("/twostroke ", 1)[1].split()
        for line in unit.splitlines()
        if line.startswith(("ExecStart=", "ExecStartPre="))
    ]
    from twostroke.cli.main import build_parser

    parsed = [build_parser().parse_args(command) for command in commands]
    assert [arguments.run.__module__ for arguments in parsed] == [
        "twostroke.cli.config",
        "twostroke.cli.serve",
    ]
    assert "TimeoutStopSec=75" in unit  # longer than production.yaml's shutdown_timeout_s
