"""Thousands of clients that hold connections, and slow ones, while others are answered."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from twostroke.server import connections
from twostroke.testing import make_echo_bundle

resource = pytest.importorskip("resource", reason="limits of open files are those of Unix")

NUM_IDLE, NUM_HALF_SENT = 3000, 500
HALF = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Slow: "

# A process of its own: its sockets are no burden on the files that the server may open.
HOLDER = """
import resource, socket, sys
port, num_idle, num_half = map(int, sys.argv[1:4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for number in range(num_idle + num_half):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    if number >= num_idle:
        connection.sendall(HALF)
    held.append(connection)
print("held", flush=True)
for line in sys.stdin:
    closed = 0
    for connection in held:
        connection.setblocking(False)
        try:
            closed += connection.recv(1) == b""
        except BlockingIOError:
            pass
        except ConnectionError:
            closed += 1
    print(closed, flush=True)
"""


class Holder:
    """Connections that another process holds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def num_closed(self) -> int:
        """How many of them the server has closed."""
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def holding(port: int, num_idle: int, num_half: int) -> Iterator[Holder]:
    script = HOLDER.replace("HALF", repr(HALF))
    command = [sys.executable, "-c", script, *map(str, (port, num_idle, num_half))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, encoding="utf-8") as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield Holder(process)
        finally:
            process.kill()


def needs_files(count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count + 300:
        pytest.skip(f"the system lets a process open {hard} files")


def test_health_and_answers_come_beside_idle_and_half_sent_connections(serve_echo):
    needs_files(NUM_IDLE + NUM_HALF_SENT)
    live = serve_echo()
    with holding(live.port, NUM_IDLE, NUM_HALF_SENT) as holder:
        for _ in range(20):
            assert live.get("/health").status == 200
        assert live.post("/generate", {"prompt": "hi"}).body == "→hi".encode()
        assert live.get("/metrics").status == 200
        assert holder.num_closed() == 0, "all of them are within server.max_connections"
    assert live.get("/health").status == 200


def test_more_connections_than_are_allowed_keep_nobody_out(serve_echo):
    live = serve_echo(server={"max_connections": 64}, step_delay_s=0.005)
    body = {"prompt": "x" * 100}
    with live.connect("/generate", body) as stream:
        stream.head()
        with holding(live.port, 150, 150) as holder:
            for _ in range(20):
                assert live.get("/health").status == 200
            assert holder.num_closed() >= 300 - 64
            chunks, ended_cleanly = stream.chunks()
    assert (b"".join(chunks), ended_cleanly) == ("→".encode() + b"x" * 100, True)


FEW_FILES = 'ulimit -Sn 100 && ulimit -Hn 330 && exec "$@"'


def test_where_few_files_may_be_open_a_rush_is_no_end(echo_bundle, echo_environment, tmp_path):
    """Connections are accepted in turns so short that idle ones make room in time."""
    model = {"name": "echo", "source": str(echo_bundle), "backend": "echo"}
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    config.write_text(json.dumps({"server": {"port": 0}, "models": [model]}), encoding="utf-8")
    serve = [sys.executable, "-m", "twostroke", "serve", "--config", str(config)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            ["sh", "-c", FEW_FILES, "sh", *serve],
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env=echo_environment,
        ) as process,
    ):
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            with holding(port, 500, 100) as holder:
                for _ in range(5):
                    url = f"http://127.0.0.1:{port}/health"
                    with urllib.request.urlopen(url, timeout=60) as reply:
                        assert reply.status == 200
                assert holder.num_closed() > 300
        finally:
            process.terminate()
    told = log.read_text(encoding="utf-8")
    assert "this process may open 330 files" in told
    assert "Too many open files" not in told


def test_headers_that_come_byte_by_byte_are_cut_off_in_time(serve_echo, monkeypatch):
    """A byte now and then is no sign of life: what counts is when the headers are all there."""
    monkeypatch.setattr(connections, "KEEPALIVE_TIMEOUT_S", 0.5)
    live = serve_echo()
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as slow:
        slow.sendall(HALF)
        with pytest.raises(ConnectionError):
            while True:
                slow.sendall(b"x")
                time.sleep(0.02)
    assert live.get("/health").status == 200


def test_bodies_that_come_byte_by_byte_delay_nobody(serve_echo):
    live = serve_echo()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    slow = [live.connect_raw(head) for _ in range(50)]
    try:
        for _ in range(10):
            for each in slow:
                each._socket.sendall(b" ")
            assert live.post("/generate", {"prompt": "hi"}).body == "→hi".encode()
    finally:
        for each in slow:
            each.close()


def test_readers_that_do_not_read_delay_nobody(serve_echo, wait_until, tmp_path):
    """Their answers are made long before they are read: none holds a row, a thread or the loop."""
    bundle = make_echo_bundle(tmp_path / "long", context_tokens=4096)
    name = "n" * 8000  # it stands in each event: what lies between server and reader fills up
    live = serve_echo(name=name, bundle=bundle, scheduler={"max_rows": 2})
    body = {"prompt": "z" * 500, "stream": True}
    slow = [live.connect("/v1/completions", body, receive_buffer_bytes=4096) for _ in range(4)]
    try:
        wait_until(lambda: live.model.engine.stats().num_finished >= 4)
        for _ in range(5):
            assert live.get("/health").json()["num_requests_in_flight"] == 4
            assert live.post("/generate", {"prompt": "hi"}).body == "→hi".encode()
        for each in slow:
            assert b" 200 " in each.head()
            chunks, ended_cleanly = each.chunks()
            assert ended_cleanly
            assert chunks[-1].endswith(b"data: [DONE]\n\n")
    finally:
        for each in slow:
            each.close()
