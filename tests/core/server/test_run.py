"""`serve` as a process of its own: the ready line, signals, the drain, a model that cannot load."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ON_WINDOWS = sys.platform == "win32"
pytestmark = pytest.mark.skipif(ON_WINDOWS, reason="signals are sent the way of Unix")


class Served:
    """A `twostroke serve` that is running."""

    def __init__(self, process: subprocess.Popen[str], log: list[str]) -> None:
        self.process = process
        self.log = log
        self.port = 0

    def wait_ready(self) -> str:
        line = self.process.stdout.readline()
        found = re.fullmatch(r"twostroke: serving (.+) on http://127\.0\.0\.1:(\d+)\n", line)
        assert found, (line, self.log)
        self.port = int(found[2])
        return found[1]

    def ask(self, method: str, path: str, body: dict | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body else None)
        return connection.getresponse()

    def exit_code(self) -> int:
        return self.process.wait(120)


@pytest.fixture
def serve(echo_bundle, echo_environment, tmp_path) -> Iterator[object]:
    """Starts `twostroke serve` on an echo model: `serve(options={"step_delay_s": 0.01})`."""
    running: list[Served] = []

    def start(
        *, source: Path = echo_bundle, server: dict | None = None, options: dict | None = None
    ) -> Served:
        config = {
            "server": {"port": 0, **(server or {})},
            "models": [
                {
                    "name": "echo",
                    "source": str(source),
                    "backend": "echo",
                    "options": options or {},
                }
            ],
        }
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "twostroke", "serve", "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=echo_environment,
            cwd=tmp_path,
        )
        log: list[str] = []
        threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
        running.append(Served(process, log))
        return running[-1]

    yield start
    for served in running:
        if served.process.poll() is None:
            served.process.kill()
        served.process.wait(60)
        served.process.stdout.close()


def test_the_ready_line_names_models_and_the_port_that_was_taken(serve):
    served = serve()
    assert served.wait_ready() == "echo"
    assert served.port != 0
    assert served.ask("GET", "/health").status == 200
    assert served.ask("POST", "/generate", {"prompt": "hi"}).read() == "→hi".encode()
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code() == 0
    assert not any("Traceback" in line for line in served.log)
    assert any(line.endswith(": stopping\n") for line in served.log)


def test_an_open_door_is_refused_before_anything_is_loaded(serve, tmp_path):
    served = serve(source=tmp_path / "nothing", server={"host": "0.0.0.0"})
    assert served.exit_code() == 2
    errors = "".join(served.log)
    assert "the configuration has 2 problems" in errors
    for way_out in ("server.keys", "server.key_file", "server.tls", "server.insecure", "127.0.0.1"):
        assert way_out in errors
    assert "nothing" not in errors


def test_the_yaml_may_insist_and_is_warned(serve):
    served = serve(server={"host": "0.0.0.0", "insecure": ["keys", "tls"]})
    assert "on http://0.0.0.0:" in served.process.stdout.readline()
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code() == 0
    warnings = [line for line in served.log if "WARNING" in line]
    assert [("without keys" in line, "without tls" in line) for line in warnings] == [
        (True, False),
        (False, True),
    ]


def test_a_key_file_that_is_missing_ends_the_start(serve, tmp_path):
    served = serve(server={"key_file": "keys.json"})
    assert served.exit_code() == 2
    told = f"{tmp_path / 'keys.json'}: no such file; `twostroke key create"
    assert any(told in line for line in served.log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_streams_end_and_refuses_new_ones(serve, number):
    served = serve(options={"step_delay_s": 0.01})
    served.wait_ready()
    running = served.ask("POST", "/generate", {"prompt": "x" * 100})
    assert running.read(3) == "→".encode()
    served.process.send_signal(number)
    while (health := served.ask("GET", "/health")).status == 200:
        pass
    assert json.load(health)["status"] == "stopping"
    refused = served.ask("POST", "/generate", {"prompt": "late"})
    assert refused.status == 503
    assert refused.headers["Retry-After"]
    assert refused.headers["Connection"] == "close"
    assert "stopping" in json.load(refused)["error"]["message"]
    assert running.read() == b"x" * 100
    assert served.exit_code() == 0
    told = "stopping: waiting up to 30 s for 1 request; a second signal cuts it off\n"
    assert any(line.endswith(told) for line in served.log)


def test_streams_that_outlast_the_shutdown_timeout_are_cut_off(serve):
    served = serve(options={"step_delay_s": 0.05}, server={"shutdown_timeout_s": 0.2})
    served.wait_ready()
    stream = {"prompt": "x" * 400, "stream": True}
    running = served.ask("POST", "/v1/completions", stream)
    running.read(10)
    served.process.send_signal(signal.SIGTERM)
    with pytest.raises(http.client.IncompleteRead) as caught:
        running.read()
    assert b"the server is stopping" in caught.value.partial
    assert b"[DONE]" not in caught.value.partial
    assert served.exit_code() == 0


def test_a_second_signal_cuts_streams_off_at_once(serve):
    served = serve(options={"step_delay_s": 0.05}, server={"shutdown_timeout_s": 600})
    served.wait_ready()
    running = served.ask("POST", "/generate", {"prompt": "x" * 400})
    running.read(3)
    served.process.send_signal(signal.SIGINT)
    while served.ask("GET", "/health").status == 200:
        pass
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code() == 128 + signal.SIGINT
    with pytest.raises(http.client.IncompleteRead):
        running.read()


def test_a_model_that_cannot_load_ends_the_start_with_one_sentence(serve, tmp_path):
    served = serve(source=tmp_path / "nothing")
    assert served.exit_code() == 2
    assert served.process.stdout.read() == ""
    errors = [line for line in served.log if line.startswith("twostroke: error: ")]
    assert len(errors) == 1
    assert "nothing" in errors[0]
    assert not any("Traceback" in line for line in served.log)


def test_a_wrong_option_of_the_backend_ends_the_start(serve):
    served = serve(options={"step_dely_s": 1})
    assert served.exit_code() == 2
    assert any("step_delay_s" in line for line in served.log)


def test_an_address_that_is_taken_is_named(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(server={"port": port})
        assert served.exit_code() == 2
    assert any(
        f"port {port}: {os.strerror(errno.EADDRINUSE).lower()}. " in line for line in served.log
    )
    assert any("server.port" in line for line in served.log)


def test_a_host_that_is_not_ours_is_named(serve):
    served = serve(server={"host": "192.0.2.1"})
    assert served.exit_code() == 2
    assert any("192.0.2.1" in line for line in served.log)


LOADS = {
    "stuck": "threading.Event().wait()",
    "reporting": "[(report(Progress('a', 0)), time.sleep(0.01)) for _ in iter(int, 1)]",
    "busy": "[sum(range(99)) for _ in iter(int, 1)]",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("load", LOADS)
def test_a_signal_ends_a_load_which_cleans_up_if_it_can(load, number):
    script = f"""
import sys, threading, time
from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import Config, ServerConfig
from twostroke.server import run
run._LOAD_STOP_TIMEOUT_S = {1 if load == "stuck" else 60}

def load(config, report):
    try:  # around the print too: the signal may come before it returns
        print("loading", flush=True)
        {LOADS[load]}
    finally:
        print("cleaned", flush=True)

sys.exit(run.serve(Config(server=ServerConfig(port=0)), load=load))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        assert process.wait(120) == 128 + number
        if load != "stuck":  # which cleans up too where the signal comes before it is stuck
            assert process.stdout.read() == "cleaned\n"
