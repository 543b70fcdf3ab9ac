"""The server that the clients ask: a process of its own, the demo model in int8 and fp32, keys."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL, PRECISE, BROKEN = "smollm2-135m-instruct", "smollm2-135m-fp32", "broken"
CONTEXT_TOKENS = 2048
KEY = "a-key-without-limits"
_READY = re.compile(r"twostroke: serving .* on (http://127\.0\.0\.1:\d+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its address, and the secret of a key for one request at once."""

    url: str
    one_at_a_time: str

    def generate(self, **fields: Any) -> dict[str, Any]:
        """What `/generate` answers to the fields, greedily: text, token counts, finish reason."""
        request = urllib.request.Request(
            f"{self.url}/generate",
            data=json.dumps({"model": MODEL, "temperature": 0, **fields}).encode(),
            headers={"Accept": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(request) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer


@contextmanager
def serving(bundles: Path, folder: Path) -> Iterator[Served]:
    """Serves `smollm2-int8` and `smollm2-fp32` of a folder; files of its own go into `folder`.

    Raises RuntimeError with what the server said where it does not start.
    """
    config = folder / "config.yaml"
    config.write_text(json.dumps(_config(bundles, folder)))  # JSON is YAML
    secret = _twostroke("key", "create", "one", "--concurrency", "1", "--file", folder / "keys")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "twostroke", "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "TWOSTROKE_CACHE": str(folder / "cache")},
        )
    try:
        yield Served(_address(process, folder / "log"), secret)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()


def _config(bundles: Path, folder: Path) -> dict[str, Any]:
    # What cannot be loaded is found out by who asks for it, and answered with a 503.
    (folder / "broken").mkdir()
    description = json.loads((bundles / "smollm2-int8" / "bundle.json").read_text())
    (folder / "broken" / "bundle.json").write_text(json.dumps(description))
    common = {"backend": "cpu", "context_tokens": CONTEXT_TOKENS, "kv": {"budget": "512MiB"}}
    sources = {
        MODEL: bundles / "smollm2-int8",
        PRECISE: bundles / "smollm2-fp32",
        BROKEN: folder / "broken",
    }
    models = [
        {"name": name, "source": str(source), "load": "first_use", **common}
        for name, source in sources.items()
    ]
    models[0]["load"] = "start"
    models[1]["sampling"] = {"temperature": 0}  # examples ask for no temperature
    server = {"port": 0, "keys": [KEY], "key_file": str(folder / "keys"), "measure_device": False}
    return {"server": server, "models": models}


def _twostroke(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "twostroke", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if ready := _READY.search(line):
            return ready[1]
    raise RuntimeError(f"the server did not start: {''.join(said)}{log.read_text()}")
