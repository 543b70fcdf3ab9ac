"""The `llm` command: a model of its extra-openai-models.yaml, whole and streamed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from asking import FACTS, SCHEMA, cell, equal

folder = tempfile.TemporaryDirectory()
models = [
    {"model_id": "here", "model_name": FACTS.model, "supports_schema": True},
    {"model_id": "here-text", "model_name": FACTS.model, "completion": True},
    {"model_id": "elsewhere", "model_name": "no-such-model"},
]
for model in models:
    model |= {"api_base": f"{FACTS.url}/v1", "api_key_name": "here"}
settings = Path(folder.name, "extra-openai-models.yaml")
settings.write_text(json.dumps(models))  # JSON is YAML
environment = {**os.environ, "LLM_USER_PATH": folder.name}


def llm(model: str, prompt: str, *flags: str, key: str = FACTS.key) -> subprocess.CompletedProcess:
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(FACTS.max_tokens)]
    command = [sys.executable, "-m", "llm", "prompt", prompt, "-m", model, "--key", key]
    return subprocess.run(
        [*command, *options, *flags],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def said(answer: subprocess.CompletedProcess) -> str:
    equal((answer.returncode, answer.stderr), (0, ""))
    return answer.stdout.removesuffix("\n")


def check_failure(answer: subprocess.CompletedProcess, reason: str) -> None:
    assert answer.returncode != 0
    assert reason in answer.stderr, answer.stderr


QUESTION = FACTS.messages[0].content


@cell("chat", "whole")
def _() -> None:
    equal(said(llm("here", QUESTION, "--no-stream")), FACTS.chat.text)
    constrained = said(llm("here", QUESTION, "--no-stream", "--schema", json.dumps(SCHEMA)))
    assert json.loads(constrained)["city"] in ("Paris", "London")
    check_failure(llm("here", QUESTION, "--no-stream", key=FACTS.wrong_key), "401")


@cell("chat", "streamed")
def _() -> None:
    equal(said(llm("here", QUESTION)), FACTS.chat.text)
    check_failure(llm("elsewhere", QUESTION), "404")
    check_failure(llm("here", FACTS.too_long), "400")


@cell("completions", "streamed")
def _() -> None:
    equal(said(llm("here-text", FACTS.prompt)), FACTS.completion.text)
