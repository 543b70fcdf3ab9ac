"""The servers that the cases are asked of: processes of their own, reached through sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

JSON = dict[str, Any]
ROOT = Path(__file__).parents[3]
READY = re.compile(r"twostroke: serving .+ on http://127\.0\.0\.1:(\d+)")
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self, status: int = 400) -> JSON:
        """The error object of a refusal."""
        assert self.status == status, (self.status, self.body[:500])
        error: JSON = self.json()["error"]
        assert "Traceback" not in error["message"]
        return error


@dataclass(frozen=True)
class Said:
    """An answer, however it came."""

    text: str
    reason: str
    num_prompt_tokens: int | None
    num_tokens: int | None
    pieces: tuple[str, ...] = ()  # of a stream


class Server:
    """A `twostroke serve` that runs, and how people ask it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def ask(
        self,
        method: str,
        path: str,
        body: JSON | bytes | str | None = None,
        *,
        timeout_s: float = 120,
        **headers: str,
    ) -> Reply:
        """One request over a connection of its own."""
        data = json.dumps(body) if isinstance(body, dict) else body
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: JSON | bytes | str, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def say(self, path: str, prompt: Any, *, stream: bool = False, **given: Any) -> Said:
        """A greedy answer through one of the surfaces, whole or streamed."""
        asked = {"messages" if path == CHAT else "prompt": prompt, "stream": stream}
        if path == CHAT and isinstance(prompt, str):
            asked["messages"] = [{"role": "user", "content": prompt}]
        if path != "/generate" and stream:
            asked["stream_options"] = {"include_usage": True}
        kind = "application/x-ndjson" if stream else "application/json"
        reply = self.post(path, {"temperature": 0, **asked, **given}, Accept=kind)
        assert reply.status == 200, reply.body[:500]
        if path == "/generate":
            return _said_plainly(reply, stream=stream)
        return _said_in_chunks(reply) if stream else _said_whole(reply)

    @contextmanager
    def asking(self, path: str, body: JSON) -> Iterator[socket.socket]:
        """A request whose answer nobody has read yet; leaving the block hangs up."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(head.encode() + data)
            yield connection

    def health(self) -> JSON:
        body: JSON = self.get("/health").json()
        return body

    def load(self) -> dict[str, int]:
        """How busy the first model is."""
        load: dict[str, int] = self.health()["models"][0]["load"]
        return load

    def resident_bytes(self) -> int:
        return int(self.health()["memory"]["resident_bytes"])

    def cpu_s(self) -> float:
        """Processor time of the server so far; other processes don't add to it."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def wait_until(self, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Waits for a load; patient, because a machine may be busy."""
        end = time.monotonic() + 120
        while not condition(load := self.load()):
            assert time.monotonic() < end, f"it never came true: {load}"
            time.sleep(0.01)
        return load


def _said_plainly(reply: Reply, *, stream: bool) -> Said:
    if not stream:
        found = reply.json()
        return Said(found["text"], *_ending(found))
    *tokens, last = (json.loads(line) for line in reply.body.decode("utf-8").splitlines())
    assert last["done"] is True
    assert not any("finish_reason" in token for token in tokens)
    pieces = tuple(token["text"] for token in tokens)
    return Said("".join(pieces), *_ending(last), pieces)


def _ending(facts: JSON) -> tuple[str, int, int]:
    return facts["finish_reason"], facts["num_prompt_tokens"], facts["num_completion_tokens"]


def _said_whole(reply: Reply) -> Said:
    (choice,) = reply.json()["choices"]
    usage = reply.json()["usage"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Said(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])


def _said_in_chunks(reply: Reply) -> Said:
    frames = reply.body.decode("utf-8").split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    *chunks, last = (json.loads(frame.removeprefix("data: ")) for frame in frames[:-2])
    assert last["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    pieces = tuple(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
    )
    usage = last["usage"]
    return Said(
        "".join(pieces), reasons[-1], usage["prompt_tokens"], usage["completion_tokens"], pieces
    )


@contextmanager
def serving(cache: Path, folder: Path, settings: dict[str, Any]) -> Iterator[Server]:
    """`twostroke serve` on the default configuration with other settings, until the block ends."""
    settings = {"models.0.backend": "cpu", "server.port": 0, **settings}
    overrides = [part for item in settings.items() for part in ("--set", "{}={}".format(*item))]
    log = folder / f"{len(list(folder.iterdir()))}.log"  # a pipe that nobody reads would fill up
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "twostroke", "serve"),
                *("--config", str(ROOT / "config.yaml"), *overrides),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "TWOSTROKE_CACHE": str(cache)},
        )
    try:
        while not (ready := READY.search(log.read_text())):
            assert process.poll() is None, f"the server did not start: {log.read_text()}"
            time.sleep(0.05)
        yield Server(process, int(ready[1]), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "the server did not end well"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Serves a source with settings of its own until the run ends."""
    cache, folder = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("cwd")
    with ExitStack() as stack:

        def make(source: Path, **settings: Any) -> Server:
            named = {name.replace("__", "."): value for name, value in settings.items()}
            return stack.enter_context(serving(cache, folder, {"models.0.source": source, **named}))

        yield make


@pytest.fixture(scope="session")
def live(serve: Callable[..., Server], demo_bundle_int8: Path) -> Server:
    """The server that nearly every case is asked of: the demo model in int8, as it comes."""
    return serve(demo_bundle_int8)


@pytest.fixture(scope="session")
def small(serve: Callable[..., Server], demo_bundle_int8: Path) -> Server:
    """The demo model with one row, a queue of one, and a name like a registry's."""
    return serve(
        demo_bundle_int8,
        scheduler__max_rows=1,
        scheduler__max_queue=1,
        models__0__name="org/smollm2:135m",
        models__0__context_tokens=2048,
    )


@pytest.fixture
def twostroke(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command to its end, in an empty folder."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "twostroke", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "TWOSTROKE_CACHE": str(tmp_path / "cache"), **variables},
            check=False,
        )

    return run
