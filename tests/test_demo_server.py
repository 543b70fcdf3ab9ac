"""The whole of it: `twostroke serve` on the demo model, asked as people ask.

A process of its own, real sockets and the official client; what the README promises.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.slow

NAME = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
READY = re.compile(r"twostroke: serving \S+ on http://127\.0\.0\.1:(\d+)")
Serve = Callable[[Path], int]


@contextmanager
def serving(bundle: Path, cache: Path) -> Iterator[int]:
    """A server on the default configuration with another source; answers its port."""
    config = Path(__file__).parents[1] / "config.yaml"
    settings = {"models.0.source": bundle, "models.0.backend": "cpu", "server.port": 0}
    overrides = [part for item in settings.items() for part in ("--set", "{}={}".format(*item))]
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "serve", "--config", str(config), *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TWOSTROKE_CACHE": str(cache)},
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready := READY.search(line):
                break
        else:
            pytest.fail(f"the server did not start: {''.join(said)}")
        yield int(ready[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serves a bundle, at most one server for each until the module ends."""
    ports: dict[Path, int] = {}
    with ExitStack() as stack:

        def serve(bundle: Path) -> int:
            if bundle not in ports:
                cache = tmp_path_factory.mktemp("cache")
                ports[bundle] = stack.enter_context(serving(bundle, cache))
            return ports[bundle]

        yield serve


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
        return json.load(reply)


def read_chunks(stream: Any) -> Iterator[bytes]:
    while size := int(stream.readline(), 16):
        yield stream.read(size)
        assert stream.readline() == b"\r\n"


def test_each_token_is_a_chunk_sent_before_the_next_is_made(serve, demo_bundle_int8):
    port = serve(demo_bundle_int8)
    asked = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}
    body = json.dumps(asked).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        stream = connection.makefile("rb")
        head = b"".join(iter(stream.readline, b"\r\n")).lower()
        chunks = read_chunks(stream)
        first = next(chunks)
        load = health(port)["models"][0]["load"]
        assert (load["num_running"], load["num_finished"]) == (1, 0)
        rest = list(chunks)
    assert head.startswith(b"http/1.1 200 ")
    assert b"transfer-encoding: chunked" in head
    assert b"content-type: text/plain" in head
    assert len([first, *rest]) == 24
    assert first == b" Paris"


def test_the_chat_endpoint_knows_the_capital_of_france(serve, demo_bundle_int8):
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{serve(demo_bundle_int8)}/v1", api_key="none"
    )
    whole = client.chat.completions.create(model=NAME, messages=QUESTION)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.prompt_tokens == 37
    pieces = client.chat.completions.create(model=NAME, messages=QUESTION, stream=True)
    deltas = [piece.choices[0].delta.content or "" for piece in pieces]
    assert "".join(deltas) == whole.choices[0].message.content
    assert len([delta for delta in deltas if delta]) == whole.usage.completion_tokens - 1  # no EOS


def test_eight_at_once_get_what_each_gets_alone(serve, demo_bundle_fp32):
    url = f"http://127.0.0.1:{serve(demo_bundle_fp32)}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", timeout=120)
    story = "The ferry left the island a little after six, when the harbour was still grey. "

    def ask(number: int) -> str:
        answer = client.completions.create(
            model=NAME,
            prompt=story * (1 + 2 * number),  # from 20 tokens to 300, more than one chunk
            max_tokens=8 + 2 * number,
            temperature=0,
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert together == [ask(number) for number in range(8)]
    load = health(serve(demo_bundle_fp32))["models"][0]["load"]
    assert (load["num_running"], load["num_failed"]) == (0, 0)


def test_health_says_where_every_node_runs(serve, demo_bundle_int8):
    status = health(serve(demo_bundle_int8))["models"][0]
    for stroke in ("prefill", "decode"):
        assert set(status["placement"][stroke]["nodes"]) == {"CPUExecutionProvider"}
    assert status["fallback"] is None
