"""What clients and operators see of sessions that fail, over real sockets."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import (
    ModelConfig,
    RecoveryConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from twostroke.model import Model
from twostroke.testing import echo
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import FaultyPlugin

from .conftest import LiveServer, open_echo

HI = {"messages": [{"role": "user", "content": "abcdef"}]}
SURFACES = {
    "/generate": {"prompt": "abcdef"},
    "/v1/completions": {"prompt": "abcdef"},
    "/v1/chat/completions": HI,
}
EVERY_SURFACE = pytest.mark.parametrize("path", SURFACES)
BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
# How the surfaces tell of a fault in a stream that has begun.
LAST_WORDS = [
    ("/generate", "text/plain", b""),
    ("/generate", "application/x-ndjson", b'"code":"model_unhealthy"'),
    ("/v1/completions", "*/*", b'"code":"model_unhealthy"'),
    ("/v1/chat/completions", "*/*", b'"code":"model_unhealthy"'),
]


class Faulty:
    """A live server with one model that fails on order, and its faults."""

    def __init__(self, bundle: Path, stack: ExitStack, **recovery: object) -> None:
        self.faults = Faults()
        config = ModelConfig(
            name="faulty",
            source=str(bundle),
            backend="echo",
            speculation=SpeculationConfig(mode="off"),
            recovery=RecoveryConfig(**recovery),
        )
        plugins = load_plugins(extra=[FaultyPlugin(echo, self.faults)])
        self.model = Model.from_config(config, SchedulerConfig(), plugins=plugins)
        sibling = open_echo(bundle, "sibling")
        stack.callback(self.model.close)
        stack.callback(sibling.close)
        self.live = LiveServer([self.model, sibling], ["faulty", "sibling"], ServerConfig(port=0))
        stack.callback(self.live.close)
        stack.callback(self.faults.release)

    def post(self, path: str = "/generate", *, model: str = "faulty", **fields: object):
        return self.live.post(path, {**SURFACES[path], "model": model, **fields})

    def health(self) -> dict:
        """What `/health` says of the model, and its status code."""
        reply = self.live.get("/health")
        (body,) = [model for model in reply.json()["models"] if model["name"] == "faulty"]
        return {**body["health"], "code": reply.status, "overall": reply.json()["status"]}

    def metric(self, name: str) -> float:
        page = self.live.get("/metrics").body.decode()
        labels = r'\{[^}]*model_name="faulty"[^}]*\}'
        return float(re.search(rf"^twostroke_{name}{labels} (\S+)", page, re.MULTILINE)[1])

    def sibling_answers(self) -> bool:
        return self.post(model="sibling", stream=False).status == 200


@pytest.fixture
def faulty(echo_bundle: Path) -> Iterator[Callable[..., Faulty]]:
    with ExitStack() as stack:
        yield lambda **recovery: Faulty(echo_bundle, stack, **recovery)


@EVERY_SURFACE
@BOTH_MODES
def test_a_device_that_is_lost_before_the_first_byte_is_a_503(faulty, path, stream):
    served = faulty(max_tries=0)
    served.faults.lose_device()
    reply = served.post(path, stream=stream)
    assert reply.status == 503
    assert int(reply.headers["Retry-After"]) >= 1
    error = reply.error()
    assert (error["code"], error["type"]) == ("model_unhealthy", "server_error")
    assert "was ordered" in error["message"]
    assert served.sibling_answers()


@pytest.mark.parametrize(("path", "accept", "last"), LAST_WORDS)
def test_one_that_is_lost_in_mid_stream_ends_it_with_one_error(faulty, path, accept, last):
    served = faulty(max_tries=0)
    served.faults.lose_device("decode", after=2)
    body = {**SURFACES[path], "model": "faulty", "stream": True}
    with served.live.connect(path, body, Accept=accept) as stream:
        assert b" 200 " in stream.head()
        chunks, ended_cleanly = stream.chunks()
    assert not ended_cleanly
    assert last in chunks[-1]
    assert sum(b"model_unhealthy" in chunk for chunk in chunks) == bool(last)
    assert b"[DONE]" not in b"".join(chunks)
    assert served.sibling_answers()


def test_an_outage_shows_everywhere_and_ends_by_itself(faulty, wait_until):
    served = faulty()
    assert served.health()["code"] == 200
    assert served.metric("backend_healthy") == 1
    served.faults.fail_opening(1)
    served.faults.lose_device()
    assert served.post().status == 503
    health = served.health()
    assert (health["code"], health["overall"]) == (503, "unhealthy")
    assert health["state"] in ("unhealthy", "rebuilding")
    assert "was ordered" in health["reason"]
    assert health["since_s"] >= 0
    assert served.metric("backend_healthy") == 0
    refused = served.post()
    assert (refused.status, refused.error()["code"]) == (503, "model_unhealthy")
    assert served.sibling_answers()
    wait_until(lambda: served.health()["code"] == 200)
    assert served.post(stream=False).body == "→abcdef".encode()
    health = served.health()
    assert (health["state"], health["num_rebuilds"]) == ("ready", 1)
    assert "reason" not in health
    assert served.metric("backend_healthy") == 1
    assert served.metric("backend_rebuilds_total") == 1
    page = served.live.get("/metrics").body.decode()
    assert 'run_failures_total{kind="device_lost",model_name="faulty"} 1.0' in page
    assert (served.faults.num_devices_opened, served.faults.num_open_devices) == (2, 1)


def test_a_model_that_was_given_up_says_so(faulty):
    served = faulty(max_tries=0)
    served.faults.lose_device()
    served.post()
    health = served.health()
    assert (health["code"], health["state"], health["next_try_s"]) == (503, "failed", None)
    assert "Restart the server" in served.post().error()["message"]
    assert served.sibling_answers()


def test_a_run_that_hangs_and_listens_is_a_500_that_names_the_watchdog(faulty):
    served = faulty(watchdog_s=0.5)
    served.faults.hang("prefill")
    reply = served.post()
    assert (reply.status, reply.error()["code"]) == (500, "run_hung")
    assert "watchdog_s" in reply.error()["message"]
    assert served.post().status == 200
    assert served.health()["failures"] == {"hang": 1}


def test_a_deaf_run_is_left_behind_and_the_model_comes_back(faulty, wait_until):
    served = faulty(watchdog_s=0.5)
    served.faults.hang("decode", deaf=True)
    body = {"prompt": "abcdef", "model": "faulty"}
    with served.live.connect("/generate", body, Accept="application/x-ndjson") as stream:
        assert b" 200 " in stream.head()
        chunks, ended_cleanly = stream.chunks()
    assert not ended_cleanly
    assert b"model_unhealthy" in chunks[-1]
    assert served.health()["num_hung_threads"] == 1
    wait_until(lambda: served.health()["code"] == 200)
    assert served.post(stream=False).body == "→abcdef".encode()
    assert served.metric("hung_threads") == 1
    served.faults.release()
    wait_until(lambda: served.metric("hung_threads") == 0)
    assert served.post(stream=False).body == "→abcdef".encode()


def test_logits_that_are_no_numbers_end_one_answer(faulty):
    served = faulty()
    served.faults.poison("decode", after=1)
    reply = served.post(stream=False)
    assert (reply.status, reply.error()["code"]) == (500, "engine_error")
    assert "no finite numbers" in reply.error()["message"]
    assert served.health()["code"] == 200
    assert served.post(stream=False).status == 200


def test_a_server_ends_although_a_run_hangs(echo_bundle):
    program = f"""
import os, signal, threading
from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import Config, ModelConfig, RecoveryConfig, ServerConfig
from twostroke.model import Model
from twostroke.server.run import serve
from twostroke.testing import echo
from twostroke.testing.engines import echo_request
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import FaultyPlugin

faults = Faults()
faults.hang("prefill", deaf=True)
model = ModelConfig(
    name="echo",
    source={str(echo_bundle)!r},
    backend="echo",
    recovery=RecoveryConfig(watchdog_s=0.2),
)

def load(settings, report):
    plugins = load_plugins(extra=[FaultyPlugin(echo, faults)])
    opened = Model.from_config(settings.model, plugins=plugins)
    opened.engine.submit(echo_request("a", "abc"), lambda event: None, arrived_at=0.0)
    assert faults.hanging.wait(30)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return opened

raise SystemExit(serve(Config(server=ServerConfig(port=0), models=(model,)), load=load))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "serving echo" in run.stdout
