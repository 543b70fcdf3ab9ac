"""The command line as a user meets it: help, versions, failures, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from twostroke.cli import main
from twostroke.cli.main import COMMANDS, build_parser
from twostroke.errors import BundleError, ConfigError

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"]])
def test_help_and_version_load_nothing_heavy(echo_environment, arguments):
    code = (
        "import sys\nfrom twostroke.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = {'numpy', 'pydantic', 'aiohttp', 'yaml', 'tokenizers', 'onnxruntime', 'torch',\n"
        "         'asyncio', 'jinja2', 'pluggy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=echo_environment
    )
    assert done.returncode == 0, done.stderr


def test_version(twostroke):
    assert twostroke("--version").stdout == f"twostroke {version('twostroke')}\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_listed_and_explains_itself(capsys, name):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  twostroke {name}" in text
    assert text.count("\n\n") >= 2  # usage, a paragraph, then the options
    assert name in build_parser().format_help()


@pytest.mark.parametrize("action", ["check", "schema"])
def test_actions_of_config_explain_themselves(capsys, action):
    with pytest.raises(SystemExit):
        main(["config", action, "--help"])
    assert f"examples:\n  twostroke config {action}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["serve", "--no-such-flag"]])
def test_wrong_usage_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: twostroke" in capsys.readouterr().err


@pytest.fixture
def failing(monkeypatch):
    def fail_with(error: BaseException) -> int:
        def run(_):
            raise error

        monkeypatch.setattr("twostroke.cli.config.run_schema", run)
        return main(["config", "schema"])

    monkeypatch.delenv("TWOSTROKE_DEBUG", raising=False)
    return fail_with


def test_an_error_is_one_sentence(failing, capsys):
    assert failing(BundleError("mine/prefill.onnx is missing")) == 2
    assert capsys.readouterr().err == "twostroke: error: mine/prefill.onnx is missing\n"


def test_problems_of_the_configuration_stand_on_lines_of_their_own(failing, capsys):
    assert failing(ConfigError(["a.yaml:1: x", "a.yaml:2: y"])) == 2
    expected = "twostroke: error: the configuration has 2 problems:\na.yaml:1: x\na.yaml:2: y\n"
    assert capsys.readouterr().err == expected


def test_a_fault_of_ours_says_how_to_see_more(failing, capsys):
    assert failing(RuntimeError("boom")) == 70
    told = capsys.readouterr().err
    assert told.startswith("twostroke: error: RuntimeError: boom (this should not happen")
    assert "--debug" in told
    assert "Traceback" not in told


def test_files_that_cannot_be_used_are_named(failing, capsys):
    assert failing(PermissionError(13, "Permission denied", "/out")) == 2
    assert capsys.readouterr().err == "twostroke: error: /out: Permission denied\n"


def test_an_output_that_cannot_be_written_is_no_fault_of_ours(failing, capsys):
    assert failing(OSError(28, "No space left on device")) == 2
    assert capsys.readouterr().err == (
        "twostroke: error: the output cannot be written: No space left on device\n"
    )


def test_interrupts(failing, capsys):
    assert failing(KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_stack_traces_are_shown_on_request_only(twostroke, where):
    arguments = ["config", "check", "none.yaml"]
    if where == "before":
        done = twostroke("--debug", *arguments)
    elif where == "after":
        done = twostroke(*arguments, "--debug")
    else:
        done = twostroke(*arguments, TWOSTROKE_DEBUG="1")
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("twostroke: error: none.yaml: no such file\n")
    assert "Traceback" not in twostroke(*arguments).stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_leaves_is_no_error(echo_environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "config", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=echo_environment,
    )
    process.stdout.close()  # gone before the first byte
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(120) in (141, -signal.SIGPIPE)


def test_a_terminal_that_lacks_a_character_shows_a_question_mark(twostroke, tmp_path):
    (tmp_path / "a.yaml").write_text("models: [{name: é, source: org/x}]", encoding="utf-8")
    done = twostroke("config", "check", "a.yaml", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "1 model: ? (int8" in done.stdout
