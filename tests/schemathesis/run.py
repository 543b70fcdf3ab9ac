"""Holds a server over the echo backend to its own /openapi.json: `run.py path/to/schemathesis`.

The exit code is that of Schemathesis, which lives in an environment of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from twostroke.config.schema import ServerConfig
from twostroke.testing.serving import EchoServer

CONFIG = Path(__file__).with_name("schemathesis.toml")
KEY = "a-key-that-all-but-open-routes-want"


def main(schemathesis: str) -> int:
    """Runs it and answers its exit code."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EchoServer(Path(folder), config=ServerConfig(port=0, keys=(KEY,))) as server,
    ):
        command = [schemathesis, "--config-file", str(CONFIG), "run"]
        command += ["--header", f"Authorization: Bearer {KEY}", f"{server.url}/openapi.json"]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
