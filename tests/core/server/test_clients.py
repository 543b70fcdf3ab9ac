"""The clients in examples/clients, each against a live server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"


def run(*command, **variables):
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        check=False,
        env={**os.environ, **variables},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("sh")), reason="needs curl and sh")
def test_curl(live):
    code, out, err = run("sh", CLIENTS / "curl.sh", live.url)
    assert (code, err) == (0, "")
    assert "→The capital of France i" in out
    assert out.count('"token_id"') == 4
    assert "data: [DONE]" in out
    assert '"status":"ok"' in out


def test_standard_library(live):
    code, out, err = run(sys.executable, CLIENTS / "stdlib_client.py", live.url, "hello")
    assert (code, err) == (0, "")
    assert out.startswith("→hello\n[stop] ")


def test_standard_library_shows_a_refusal(live):
    code, out, err = run(sys.executable, CLIENTS / "stdlib_client.py", live.url, "x" * 9000)
    assert (code, out) == (1, "")
    assert str(live.model.context_tokens) in err


def test_openai(live):
    code, out, err = run(sys.executable, CLIENTS / "openai_client.py", live.url, "hello")
    assert (code, err) == (0, "")
    assert out.startswith("→user\nhello\n[")


NODE = shutil.which("node")


@pytest.mark.skipif(not NODE, reason="needs node")
def test_fetch(live):
    code, out, err = run(NODE, CLIENTS / "fetch_client.mjs", live.url, "hello")
    assert (code, err) == (0, "")
    assert out.startswith("→user\nhello\n[")


@pytest.mark.skipif(not NODE, reason="needs node")
def test_fetch_shows_a_refusal_and_an_answer_that_breaks_off(live, serve_echo):
    code, out, err = run(NODE, CLIENTS / "fetch_client.mjs", live.url, "x" * 9000)
    assert (code, out) == (1, "")
    assert str(live.model.context_tokens) in err
    faulty = serve_echo(fail_decode_runs=[3])
    code, out, err = run(NODE, CLIENTS / "fetch_client.mjs", faulty.url, "hello")
    assert (code, out.startswith("→")) == (1, True)
    assert "Error: " in err


COMMANDS = {
    "curl.sh": ("sh",),
    "stdlib_client.py": (sys.executable,),
    "openai_client.py": (sys.executable,),
    "fetch_client.mjs": (NODE,),
}


@pytest.mark.parametrize("client", COMMANDS)
def test_with_a_key(serve_echo, client):
    programs = (*COMMANDS[client], "curl") if client == "curl.sh" else COMMANDS[client]
    if not all(program and shutil.which(program) for program in programs):
        pytest.skip("needs a program that is not here")
    live = serve_echo(server={"keys": ["s3cret"]})
    command = (*COMMANDS[client], CLIENTS / client, live.url)
    code, out, err = run(*command, TWOSTROKE_KEY="s3cret")
    assert (code, err) == (0, "")
    assert "→" in out
    code, _, err = run(*command, TWOSTROKE_KEY="wrong")
    assert code != 0
    assert "401" in err or "not known to this server" in err
