"""Serves a model in a child process for as long as a run takes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twostroke.errors import TwostrokeError

_READY = re.compile(r"twostroke: serving .+ on (http://\S+)")
_STOP_TIMEOUT_S = 30.0
# Only this machine reaches it, so whatever the YAML asks of others is not wanted here.
_OWN_SETTINGS = (
    "server.host=127.0.0.1",
    "server.port=0",
    "server.keys=[]",
    "server.key_file=null",
    "server.tls=null",
)


@contextmanager
def served(flags: Sequence[str]) -> Iterator[str]:
    """`twostroke serve` with `flags` on a free port of this machine; answers its URL.

    What it logs goes to stderr. It is stopped when the block ends.

    Raises:
        TwostrokeError: it did not start; it said why on stderr.
    """
    own = (word for setting in _OWN_SETTINGS for word in ("--set", setting))
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "serve", *flags, *own],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _url(process)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _url(process: subprocess.Popen[str]) -> str:
    """Reads until the server says that it is ready; after that it says nothing more there."""
    assert process.stdout is not None
    for line in process.stdout:
        if ready := _READY.match(line):
            return ready[1]
    raise TwostrokeError(
        f"The server for this run ended with exit code {process.wait()} before it was ready; "
        "what it says above is why."
    )
