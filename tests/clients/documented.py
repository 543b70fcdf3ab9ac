"""The examples of docs/clients.md, run as they stand there but for address, key and model."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matrix
from served import KEY, MODEL, PRECISE

HERE = Path(__file__).parent
_PAGE = HERE.parents[1] / "docs" / "clients.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ADDRESS = "http://127.0.0.1:8080"
_BUNDLE = "bundles/mine"
_TIMEOUT_S = 120


def try_example(
    client: str, facts: Mapping[str, Any], interpreters: tuple[str, str], folder: Path
) -> dict[matrix.Cell, str | None]:
    """Whether the client's example, if it has one that runs, prints the answer and nothing else.

    `interpreters` are Python and Node. A configuration of `llm` is written into `folder`.
    """
    cell = matrix.Cell(client, matrix.DOCUMENTED, "whole")
    if cell not in matrix.expected([client]):
        return {}
    blocks = _blocks(client, facts["url"])
    python, node = interpreters
    cwd, environment = folder, {**os.environ, "LLM_USER_PATH": str(folder)}
    if "python" in blocks:
        command, said = [python, "-"], blocks["python"]
    elif "js" in blocks:
        command, said = [node, "--input-type=module", "-"], blocks["js"]
        cwd = HERE / "node"  # where its packages are
    else:
        (folder / "extra-openai-models.yaml").write_text(blocks["yaml"])
        command, said = ["sh", "-eu"], blocks["bash"]
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
    done = subprocess.run(
        command,
        input=said,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode == 0 and done.stdout.strip() == facts["documented"]:
        return {cell: None}
    return {cell: f"{done.stdout!r} instead of {facts['documented']!r}\n{done.stderr}"}


def model_arguments(url: str, tokenizer: str) -> str:
    """What the example of lm-eval has behind --model_args, but for address, model and tokenizer."""
    (written,) = re.findall(r"--model_args (\S+)", _blocks("lm-eval (Python)", url)["bash"])
    return written.replace(_BUNDLE, tokenizer)


def _blocks(client: str, url: str) -> dict[str, str]:
    """The blocks of a client's section by their language, with what is known only here."""
    _, _, section = _PAGE.read_text(encoding="utf-8").partition(f"\n## {client}\n")
    section = section.partition("\n## ")[0]
    # The model in fp32 is greedy where nothing is asked for.
    section = section.replace(_ADDRESS, url).replace(MODEL, PRECISE)
    return dict(_FENCE.findall(re.sub(r"\bnone\b", KEY, section)))
