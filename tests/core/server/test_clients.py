"""The clients in examples/clients, each against a live server."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"


def run(*command):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, encoding="utf-8", timeout=180, check=False
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
