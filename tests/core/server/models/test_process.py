"""`twostroke serve` as a process: SIGHUP, a file that changes, a stream that runs across both."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")


class Process:
    def __init__(self, folder, environment) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twostroke", "serve", "--config", "c.yaml"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
            cwd=folder,
        )
        self.log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        self.port = int(self._process.stdout.readline().rpartition(":")[2])

    def _read_log(self) -> None:
        self.log.extend(self._process.stderr)

    def ask(self, method: str, path: str, body: dict | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body else None)
        return connection.getresponse()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        return self._process.wait(120)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def process(echo_bundle, echo_environment, tmp_path):
    def write(**changed) -> None:
        model = {"name": "a", "source": str(echo_bundle), "backend": "echo"}
        model |= {"options": {"step_delay_s": 0.03}, **changed}
        text = json.dumps({"server": {"port": 0}, "models": [model]}, indent=1)
        (tmp_path / "c.yaml").write_text(text)

    write()
    made = Process(tmp_path, echo_environment)
    made.write = write
    yield made
    made.close()


def test_a_stream_runs_on_while_the_file_is_taken_up_and_refused(process, wait_until):
    text = "x" * 200
    running = process.ask("POST", "/generate", {"prompt": text})
    assert running.read(3) == "→".encode()
    process.write(aliases=["other"])
    process.send(signal.SIGHUP)
    wait_until(lambda: process.ask("GET", "/v1/models/other").status == 200)
    process.write(aliases=["another"])  # nobody is told: it is noticed
    wait_until(lambda: process.ask("GET", "/v1/models/another").status == 200)
    process.write(contxt_tokens=5)
    wait_until(lambda: json.load(process.ask("GET", "/health"))["config"]["num_problems"] == 1)
    assert process.ask("GET", "/v1/models/another").status == 200
    assert running.read() == text.encode()
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    wait_until(lambda: any("unknown key" in line for line in process.log))
    (told,) = [line for line in process.log if "unknown key" in line]
    assert told.startswith("c.yaml:")
    assert "did you mean 'context_tokens'?" in told
    assert not any("Traceback" in line for line in process.log)
