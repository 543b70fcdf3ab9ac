"""What a small KV cache means to clients: to wait, or to be told at once with both numbers."""

from __future__ import annotations

import threading

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import KVConfig, ModelConfig, SchedulerConfig, ServerConfig
from twostroke.model import Model
from twostroke.testing import echo

from .conftest import LiveServer

CONTEXT_TOKENS = 63
BODY = {"prompt": "x" * 20, "max_tokens": 40}  # more than half of what the cache holds


@pytest.fixture
def small(echo_bundle):
    """A server whose cache holds one sequence of the whole context, though it has four rows."""

    def config(budget_bytes: int) -> ModelConfig:
        return ModelConfig(
            name="echo",
            source=str(echo_bundle),
            backend="echo",
            context_tokens=CONTEXT_TOKENS,
            kv=KVConfig(budget=budget_bytes),
            options={"step_delay_s": 0.05},
        )

    def open_model(budget_bytes: int) -> Model:
        plugins = load_plugins(extra=[echo])
        return Model.from_config(config(budget_bytes), SchedulerConfig(max_rows=4), plugins=plugins)

    large = open_model(2**20)
    bytes_per_token = large.status()["memory"]["kv_bytes_per_token"]
    large.close()
    model = open_model(bytes_per_token * (CONTEXT_TOKENS + 1))
    server = LiveServer([model], ["echo"], ServerConfig(port=0))
    yield server
    server.close()
    model.close()


def test_what_cannot_fit_now_waits_and_is_served(small, wait_until):
    replies = []

    def ask():
        replies.append(small.post("/v1/completions", BODY))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()

    def load():
        return small.get("/health").json()["models"][0]["load"]

    wait_until(lambda: (load()["num_running"], load()["num_waiting"]) == (1, 1))
    for thread in threads:
        thread.join(60)
    assert [reply.status for reply in replies] == [200, 200]
    first, second = (reply.json()["choices"][0]["text"] for reply in replies)
    assert first == second == "→" + BODY["prompt"]
    assert load()["num_failed"] == 0


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_never_fits_is_refused_with_both_numbers_before_any_byte(small, path, stream):
    reply = small.post(path, {"prompt": "y" * 200, "max_tokens": 1, "stream": stream})
    assert reply.status == 400
    message = reply.error()["message"]
    assert "200" in message
    assert str(CONTEXT_TOKENS) in message
