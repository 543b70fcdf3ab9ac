from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

import pytest

from twostroke.cli.main import build_parser
from twostroke.cli.session import choose_model
from twostroke.errors import ModelNotFoundError
from twostroke.testing.bundles import make_echo_bundle

COMMAND = (sys.executable, "-m", "twostroke")
ECHO = ("--set", "models.0.backend=echo")


def test_the_answer_goes_to_stdout_and_ends_with_a_newline(twostroke, echo_bundle):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, "héllo 🙂")
    assert (done.returncode, done.stdout, done.stderr) == (0, "→héllo 🙂\n", "")


def test_the_prompt_may_come_from_stdin(twostroke, echo_bundle):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, "-", stdin="two\nlines\n")
    assert done.stdout == "→two\nlines\n"


def test_stats_go_to_stderr(twostroke, echo_bundle):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, "--stats", "abc")
    assert done.stdout == "→abc\n"
    assert done.stderr.startswith("3 prompt tokens, 5 tokens (stop), TTFT ")
    assert done.stderr.endswith(" tokens/s\n")


def test_json_holds_the_answer_its_counts_and_timings(twostroke, echo_bundle):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, "--json", "--max-tokens", 2, "añb")
    answer = json.loads(done.stdout)
    timings = answer.pop("timings")
    assert answer == {
        "text": "→a",
        "finish_reason": "length",
        "prompt_tokens": 4,
        "completion_tokens": 2,
    }
    assert timings["ttft_ms"] > 0


def test_chat_goes_through_the_template(twostroke, echo_bundle):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, "--system", "be", "--json", "hi")
    assert json.loads(done.stdout)["prompt_tokens"] > len("behi")
    assert "system\nbe" in done.stdout.encode().decode("unicode_escape")


def test_sampling_flags_reach_the_model(twostroke, echo_bundle):
    arguments = ("generate", "--model", echo_bundle, *ECHO)
    assert twostroke(*arguments, "--stop", "lo", "hello there").stdout == "→hel\n"
    hot = (*arguments, "--temperature", 5, "--max-tokens", 12, "--seed")
    first, again, other = (twostroke(*hot, seed, "abc").stdout for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--temperature", "-1", "x"), "temperature must be from 0 to 100, not -1.0"),
        (("--max-tokens", "-5", "x"), "max_tokens must be 0 or more, not -5"),
        (("--set", "models.0.bakend=cpu", "x"), "unknown key; did you mean 'backend'?"),
        (
            ("--set", "models.0.backend=ecko", "x"),
            "There is no backend 'ecko'. Did you mean 'echo'?",
        ),
        (("x" * 600,), "512"),
    ],
)
def test_mistakes_are_told_in_a_sentence(twostroke, echo_bundle, arguments, told):
    done = twostroke("generate", "--model", echo_bundle, *ECHO, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("twostroke: error: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_of_the_yaml_by_name(twostroke, echo_bundle, tmp_path):
    other = make_echo_bundle(tmp_path / "other", name="other", chat_template=None)
    (tmp_path / "config.yaml").write_text(
        f"models:\n  - {{name: one, source: {echo_bundle}, backend: echo}}\n"
        f"  - {{name: two, source: {other.name}, backend: echo}}\n",
        encoding="utf-8",
    )
    assert twostroke("generate", "first").stdout == "→first\n"
    done = twostroke("generate", "--model", "two", "--chat", "x")
    assert done.returncode == 2
    assert "chat template" in done.stderr


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", "x", *arguments])


def test_a_source_makes_a_configuration_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("colour: red\n")  # not even read
    (tmp_path / "a b: #c.gguf").touch()
    config, model = choose_model(parse("--model", "a b: #c.gguf", "--set", "scheduler.max_rows=2"))
    assert (model.name, model.source) == ("a b: #c", str(tmp_path / "a b: #c.gguf"))
    assert config.scheduler.max_rows == 2
    assert choose_model(parse("--model", "org/name"))[1].source == "org/name"


def test_an_unknown_name_lists_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="its models are: smollm2-135m-instruct"):
        choose_model(parse("--model", "nothing"))
    (tmp_path / "deploy.yaml").write_text("models: [{name: org/one, source: org/x}]\n")
    _, model = choose_model(parse("--config", "deploy.yaml", "--model", "org/one"))
    assert model.source == "org/x"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_ends_it_with_130(echo_environment, echo_bundle):
    slow = ("--set", "models.0.options.step_delay_s=0.2")
    process = subprocess.Popen(
        [*COMMAND, "generate", "--model", echo_bundle, *ECHO, *slow, "a long prompt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=echo_environment,
        # A test run in the background may have been told to ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout.read(3) == "→".encode()
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told == b"\ntwostroke: interrupted\n"
    assert len(rest) < len("a long prompt")
