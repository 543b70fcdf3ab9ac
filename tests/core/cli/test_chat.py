from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.cli.chat import Conversation
from twostroke.config import ModelConfig
from twostroke.model import Model
from twostroke.testing import echo
from twostroke.testing.bundles import make_echo_bundle

# Answers with the last message only, so that each turn's text is plain.
TEMPLATE = "{{ messages[0]['role'][0] ~ (messages | length) ~ ':' ~ messages[-1]['content'] }}"
ECHO = ("--set", "models.0.backend=echo")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "chat"
    return make_echo_bundle(folder, context_tokens=64, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def model(bundle):
    wanted = ModelConfig(name="echo", source=str(bundle), backend="echo")
    with Model.from_config(wanted, plugins=load_plugins(extra=[echo])) as model:
        yield model


@pytest.fixture
def talk(model):
    def talk(*lines: str, system: str | None = None) -> tuple[str, list[str], Conversation]:
        out, notes = io.StringIO(), io.StringIO()
        conversation = Conversation(model, {}, system, out, notes)
        for line in lines:
            if not conversation.take(line):
                break
        return out.getvalue(), notes.getvalue().splitlines(), conversation

    return talk


def test_turns_are_remembered(talk):
    said, notes, conversation = talk("hi", "", "  again ")
    assert said == "→u1:hi\n→u3:again\n"
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
    assert all(re.search(r"TTFT \d+ ms, [\d.]+ tokens/s$", note) for note in notes)


def test_commands(talk):
    said, notes, _ = talk(
        "/system be brief", "hi", "/reset", "hi", "/system", "hi", "/bad", "/help"
    )
    assert said == "→s2:hi\n→s2:hi\n→u3:hi\n"
    assert notes[0] == "the system message is set"
    assert "the conversation is forgotten" in notes
    assert "the system message is removed" in notes
    assert "there is no /bad; /help lists the commands" in notes
    assert notes[-1] == "Ctrl-C stops the running answer."


def test_quit_leaves(talk):
    said, _, _ = talk("hi", "/quit", "more")
    assert said == "→u1:hi\n"


def test_a_question_that_does_not_fit_is_forgotten(talk):
    said, notes, conversation = talk("hi", "x" * 100, "you")
    assert said == "→u1:hi\n→u3:you\n"
    assert notes[1].startswith("error: ")
    assert "64" in notes[1]
    assert notes[1].endswith("(/reset starts anew)")
    assert conversation.num_failed == 1


def test_piped_questions_are_answered_one_a_line(twostroke, bundle):
    done = twostroke("chat", "--model", bundle, *ECHO, stdin="hi\nyou\n")
    assert (done.returncode, done.stdout) == (0, "→u1:hi\n→u3:you\n")
    assert done.stderr.count("TTFT") == 2


def test_piped_questions_that_fail_show_in_the_exit_code(twostroke, bundle):
    done = twostroke("chat", "--model", bundle, *ECHO, stdin="x" * 100 + "\nhi\n")
    assert (done.returncode, done.stdout) == (2, "→u1:hi\n")


def test_without_a_chat_template_it_says_what_to_use(twostroke, tmp_path):
    plain = make_echo_bundle(tmp_path / "plain", chat_template=None)
    done = twostroke("chat", "--model", plain, *ECHO, stdin="hi\n")
    assert done.returncode == 2
    assert "has no chat template, so it cannot chat; use `twostroke generate`" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX terminals and signals")
def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(echo_environment, bundle):
    import pty

    leaving = "Ctrl-D or /quit leaves"
    keyboard, terminal = pty.openpty()
    slow = ("--set", "models.0.options.step_delay_s=0.2")
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "chat", "--model", bundle, *ECHO, *slow],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**echo_environment, "TERM": "dumb"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(terminal)
    try:
        seen = until(keyboard, "> ")
        assert "/help lists the commands" in seen
        os.write(keyboard, b"a long question\n")
        until(keyboard, "→u")
        process.send_signal(signal.SIGINT)
        seen = until(keyboard, "> ")
        assert "stopped" in seen
        assert "question" not in seen
        for _ in range(20):  # readline misses a signal between its prompt and its wait
            process.send_signal(signal.SIGINT)
            if leaving in until(keyboard, leaving, patience_s=1):
                break
        else:
            pytest.fail("Ctrl-C at the prompt did nothing")
        until(keyboard, "> ")
        os.write(keyboard, b"so\n")
        assert "→u3:so" in until(keyboard, "tokens/s")
        until(keyboard, "> ")
        os.write(keyboard, b"\x04")
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def until(keyboard: int, text: str, *, patience_s: float = 30) -> str:
    """What the terminal shows up to and with `text`, or until nothing comes any more."""
    seen = b""
    while text.encode() not in seen and select.select([keyboard], [], [], patience_s)[0]:
        seen += os.read(keyboard, 1)
    return seen.decode()
