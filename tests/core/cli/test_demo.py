"""The commands on a real model."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow
CPU = ("--set", "models.0.backend=cpu")


def test_verify(twostroke, demo_bundle_int8):
    done = twostroke("verify", demo_bundle_int8, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert "tokens as at export" in done.stdout
    assert done.stdout.endswith(f"{demo_bundle_int8}: ok\n")


def test_generate(twostroke, demo_bundle_int8):
    arguments = ("--temperature", 0, "--max-tokens", 8, "--stats", "The capital of France is")
    done = twostroke("generate", "--model", demo_bundle_int8, *CPU, *arguments, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris")
    assert "5 prompt tokens, 8 tokens (length), TTFT " in done.stderr


def test_chat(twostroke, demo_bundle_int8):
    arguments = ("--temperature", 0, "--max-tokens", 12)
    question = "What is the capital of France?\n"
    done = twostroke(
        "chat", "--model", demo_bundle_int8, *CPU, *arguments, stdin=question, timeout_s=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "37 prompt tokens, " in done.stderr
