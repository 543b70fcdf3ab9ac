"""Models that come and go, as Anthropic's and Ollama's clients see them."""

from __future__ import annotations

import anthropic
import ollama
import pytest

LAZY = {"name": "lazy", "load": "first_use", "keep_alive_s": 60}


@pytest.fixture
def many(serve_many):
    aliased = {**LAZY, "aliases": ["claude", "llama3:8b"]}
    return serve_many({"name": "a"}, aliased, {**LAZY, "name": "none", "source": "no/where"})


def test_ollamas_clients_see_what_is_not_loaded_and_have_it_loaded(many):
    with ollama.Client(host=many.live.url) as client:
        there, lazy, nowhere = client.list().models
        assert (there.model, lazy.model) == ("a:latest", "lazy:latest")
        assert (lazy.size, lazy.digest, lazy.details) == (there.size, there.digest, there.details)
        assert (nowhere.size, nowhere.digest, nowhere.details.family) == (0, "", "")
        a, lazy, nowhere = (client.show(name) for name in ("a", "lazy", "none"))
        assert lazy.capabilities == a.capabilities == ["completion", "tools"]
        assert (lazy.template, lazy.parameters) == (a.template, a.parameters)
        assert lazy.modelinfo["echo.context_length"] == a.modelinfo["echo.context_length"]
        assert (nowhere.capabilities, nowhere.template) == (["completion"], "")
        assert client.pull("lazy:latest").status == "success"
        assert many.loads == ["a"]
        answer = client.generate("lazy:latest", "hi")
        assert answer.response
        assert answer.total_duration > answer.load_duration > 0
        assert client.chat("llama3:8b", [{"role": "user", "content": "x"}]).model == "llama3:8b"
        assert many.loads == ["a", "lazy"]
        stays, goes = client.ps().models
        assert (stays.expires_at.year, goes.model) == (9999, "lazy:latest")
        assert goes.expires_at.year < 9999


def test_ollamas_clients_load_and_unload(many):
    with ollama.Client(host=many.live.url) as client:
        assert client.generate("lazy").done_reason == "load"
        assert many.loads == ["a", "lazy"]
        for ask in (client.generate, client.chat):
            assert ask("lazy", keep_alive=0).done_reason == "unload"
            assert many.states()["lazy"] == "unloaded"
        assert many.loads == ["a", "lazy"]
        with pytest.raises(ollama.ResponseError, match="not served"):
            client.generate("other", keep_alive=0)


def test_anthropics_clients_use_aliases_and_have_models_loaded(many):
    with anthropic.Anthropic(base_url=many.live.url, api_key="none", max_retries=0) as client:
        asked = {"model": "claude", "messages": [{"role": "user", "content": "x"}]}
        assert client.messages.count_tokens(**asked).input_tokens > 0
        assert many.loads == ["a", "lazy"]
        assert client.messages.create(max_tokens=4, **asked).model == "lazy"
        assert [model.id for model in client.models.list()] == ["a", "lazy", "none"]
        assert client.models.retrieve("claude").id == "lazy"
