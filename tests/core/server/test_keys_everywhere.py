"""Keys on every surface: asked for, held to their models and to their limits."""

import pytest

from .keys import Keys, ask


@pytest.fixture
def keys(tmp_path, serve_echo, monkeypatch):
    return Keys(tmp_path / "keys.json", serve_echo, monkeypatch)


MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES = {
    "/generate": {"prompt": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
}
ANSWERING = {
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": MESSAGES},
    "/api/show": {},
}


@pytest.mark.parametrize("path", [*ROUTES, *ANSWERING])
def test_every_surface_asks_for_a_key_and_keeps_to_its_models(keys, path):
    keys.add("alice", models=("other",))
    keys.add("bob")
    live = keys.serve()
    body = {"model": "echo", **(ROUTES | ANSWERING)[path]}
    assert live.post(path, body).status == 401
    assert ask(live, "wrong", path, body).status == 401
    assert ask(live, "bob", path, body).status == 200
    assert ask(live, "alice", path, body).status == 403
    for header in ("x-api-key", "Authorization"):
        value = "bob" if header == "x-api-key" else "Bearer bob"
        assert live.post(path, body, **{header: value}).status == 200


@pytest.mark.parametrize("path", ROUTES)
def test_every_surface_keeps_to_limits(keys, path):
    keys.add("alice", requests_per_minute=1)
    live = keys.serve()
    body = {"model": "echo", **ROUTES[path]}
    assert ask(live, "alice", path, body).status == 200
    reply = ask(live, "alice", path, body)
    assert reply.status == 429
    assert int(reply.headers["Retry-After"]) >= 1
    assert "'alice' may have 1 request a minute" in reply.body.decode()


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/api/ps", "/models"])
def test_every_list_shows_only_a_keys_models(keys, path):
    keys.add("alice", models=("other",))
    keys.add("bob")
    live = keys.serve()
    shown = {}
    for name in ("alice", "bob"):
        for version in ({}, {"anthropic-version": "2023-06-01"}):
            reply = live.get(path, Authorization=f"Bearer {name}", **version)
            assert reply.status == 200
            shown[name] = b'"echo"' in reply.body or b'"echo:latest"' in reply.body
    assert shown == {"alice": False, "bob": True}


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_what_tells_of_a_model_is_for_its_keys(keys, path):
    keys.add("alice", models=("other",))
    keys.add("bob")
    live = keys.serve()
    assert live.get(path, Authorization="Bearer alice").status == 403
    assert live.get(path, Authorization="Bearer bob").status == 200
