"""Models that come and go, as Anthropic's and Ollama's clients see them."""

from __future__ import annotations

import anthropic
import ollama
import pytest

LAZY = {"name": "lazy", "load": "first_use", "aliases": ["claude", "llama3:8b"], "keep_alive_s": 60}


@pytest.fixture
def many(serve_many):
    return serve_many({"name": "a"}, LAZY)


def test_ollamas_clients_see_what_is_not_loaded_and_have_it_loaded(many):
    with ollama.Client(host=many.live.url) as client:
        there, lazy = client.list().models
        assert (there.model, lazy.model) == ("a:latest", "lazy:latest")
        assert (lazy.size, lazy.digest, lazy.details.family) == (0, "", "")
        assert client.show("lazy").capabilities == ["completion"]
        assert client.pull("lazy:latest").status == "success"
        assert many.loads == ["a"]
        answer = client.generate("lazy:latest", "hi")
        assert answer.response
        assert answer.total_duration > answer.load_duration > 0
        assert client.chat("llama3:8b", [{"role": "user", "content": "x"}]).model == "llama3:8b"
        assert many.loads == ["a", "lazy"]
        assert client.list().models[1].size > 0
        stays, goes = client.ps().models
        assert (stays.expires_at.year, goes.model) == (9999, "lazy:latest")
        assert goes.expires_at.year < 9999


def test_anthropics_clients_use_aliases_and_have_models_loaded(many):
    with anthropic.Anthropic(base_url=many.live.url, api_key="none", max_retries=0) as client:
        asked = {"model": "claude", "messages": [{"role": "user", "content": "x"}]}
        assert client.messages.count_tokens(**asked).input_tokens > 0
        assert many.loads == ["a", "lazy"]
        assert client.messages.create(max_tokens=4, **asked).model == "lazy"
        assert [model.id for model in client.models.list()] == ["a", "lazy"]
        assert client.models.retrieve("claude").id == "lazy"
