"""A server whose model answers with the last message, so that a test writes the answer."""

from __future__ import annotations

import anthropic
import ollama
import pytest

from twostroke.testing import make_echo_bundle

from .asking import TEMPLATE


@pytest.fixture(scope="module")
def script_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def scripted(serve_echo, script_bundle):
    return serve_echo(bundle=script_bundle)


@pytest.fixture
def serve_template(serve_echo, tmp_path):
    """Makes servers whose models answer with what their template writes."""

    def make(template, context_tokens=2048):
        folder = tmp_path / f"bundle-{context_tokens}"
        made = make_echo_bundle(folder, chat_template=template, context_tokens=context_tokens)
        return serve_echo(bundle=made)

    return make


@pytest.fixture
def claude(scripted):
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def llama(scripted):
    """Ollama's client."""
    with ollama.Client(host=scripted.url) as client:
        yield client


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request):
    return request.param
