"""Keys of a file on a live server: rights, rates, and changes that need no restart."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from twostroke.api_keys.edits import created, revoked, rotated

from .keys import Keys, ask

QUESTION = {"prompt": "hi"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def keys(tmp_path, serve_echo, monkeypatch):
    return Keys(tmp_path / "keys.json", serve_echo, monkeypatch)


def test_an_empty_file_lets_nobody_in(keys):
    live = keys.serve()
    assert live.post("/generate", QUESTION).status == 401
    assert ask(live, "alice").status == 401
    assert live.get("/health").status == 200


def test_keys_of_the_file_and_of_the_yaml_count(keys):
    keys.add("alice")
    live = keys.serve({"keys": ["configured"]})
    assert ask(live, "alice").body == ask(live, "configured").body == "→hi".encode()


def test_a_new_key_is_taken_and_a_revoked_one_refused_without_a_restart(keys, wait_until):
    keys.add("alice")
    live = keys.serve()
    keys.add("bob")
    wait_until(lambda: ask(live, "bob").status == 200)
    keys.file.change(lambda known: revoked(known, "alice"))
    wait_until(lambda: ask(live, "alice").status == 401)


def test_a_running_stream_outlives_its_key(keys, wait_until):
    keys.add("alice")
    live = keys.serve(step_delay_s=0.01)
    body = {"prompt": "x" * 60}
    with live.connect("/generate", body, Authorization="Bearer alice") as stream:
        stream.head()
        keys.file.change(lambda known: revoked(known, "alice"))
        wait_until(lambda: ask(live, "alice").status == 401)
        chunks, ended_cleanly = stream.chunks()
    assert (b"".join(chunks), ended_cleanly) == ("→".encode() + b"x" * 60, True)


def test_a_file_that_breaks_changes_nothing_and_is_told(keys, wait_until, caplog):
    keys.add("alice")
    live = keys.serve()
    good = keys.file.path.read_bytes()
    keys.file.path.write_text("nonsense", encoding="utf-8")
    wait_until(lambda: "What was read before goes on to count" in caplog.text)
    assert str(keys.file.path) in caplog.text
    assert ask(live, "alice").status == 200
    keys.file.path.unlink()
    wait_until(lambda: "no such file" in caplog.text)
    assert ask(live, "alice").status == 200
    keys.file.path.write_bytes(good)
    keys.add("bob")
    wait_until(lambda: ask(live, "bob").status == 200)


def test_rotation_keeps_the_old_secret_for_its_grace(keys, wait_until):
    keys.add("alice")
    live = keys.serve()
    now = datetime.now(UTC)
    keys.file.change(lambda known: rotated(known, "alice", "new", now, timedelta(hours=1)))
    wait_until(lambda: ask(live, "new").status == 200)
    assert ask(live, "alice").status == 200


def test_an_expired_key_is_a_401_of_its_own(keys):
    keys.add("alice", expires_at=datetime(2001, 1, 1, tzinfo=UTC))
    reply = ask(keys.serve(), "alice")
    assert (reply.status, reply.error()["code"]) == (401, "expired_api_key")
    assert "2001-01-01" in reply.error()["message"]


def test_models_that_a_key_may_not_use_are_refused_and_not_shown(keys):
    keys.add("alice", models=("other",))
    keys.add("bob", models=("echo", "other"))
    live = keys.serve()
    for path, body in (("/generate", QUESTION), ("/v1/chat/completions", CHAT)):
        for named in ({}, {"model": "echo"}):
            for stream in (True, False):
                reply = ask(live, "alice", path, {**body, **named, "stream": stream})
                assert (reply.status, reply.error()["code"]) == (403, "model_not_allowed")
                assert reply.error()["param"] == "model"
                assert ask(live, "bob", path, {**body, **named, "stream": stream}).status == 200
    listed = {}
    for name in ("alice", "bob"):
        listed[name] = live.get("/v1/models", Authorization=f"Bearer {name}").json()["data"]
    assert [len(each) for each in listed.values()] == [0, 1]
    assert live.get("/v1/models/echo", Authorization="Bearer alice").status == 403
    for path, name in (("/v1/models", "data"), ("/api/tags", "models"), ("/api/ps", "models")):
        assert live.get(path, x_api_key="alice", anthropic_version="1").json()[name] == []
        assert len(live.get(path, x_api_key="bob", anthropic_version="1").json()[name]) == 1
    for path in ("/api/show", "/api/chat", "/api/generate"):
        assert ask(live, "alice", path, {"model": "echo"}).status == 403
    counted = {"model": "echo", **CHAT}
    assert ask(live, "alice", "/v1/messages/count_tokens", counted).status == 403
    assert live.get("/v1/models/echo", Authorization="Bearer bob").status == 200


def test_requests_a_minute_are_limited_and_told(keys):
    keys.add("alice", requests_per_minute=2)
    keys.add("bob")
    live = keys.serve()
    for left in ("1", "0"):
        reply = ask(live, "alice")
        assert reply.status == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "2"
        assert reply.headers["x-ratelimit-remaining-requests"] == left
    for stream in (True, False):
        reply = ask(live, "alice", "/v1/completions", {**QUESTION, "stream": stream})
        assert reply.status == 429
        assert 1 <= int(reply.headers["Retry-After"]) <= 30
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert reply.error()["code"] == "rate_limit_exceeded"
        assert reply.error()["type"] == "requests"
    assert live.get("/v1/models", Authorization="Bearer alice").status == 200, "nothing is answered"
    reply = ask(live, "bob")
    assert reply.status == 200
    assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


def test_tokens_a_minute_count_what_was_answered(keys):
    keys.add("alice", tokens_per_minute=60)
    live = keys.serve()
    first = ask(live, "alice", "/v1/completions", {"prompt": "x" * 50})
    assert first.json()["usage"]["total_tokens"] > 60
    reply = ask(live, "alice")
    assert (reply.status, reply.error()["type"]) == (429, "tokens")
    assert reply.headers["x-ratelimit-remaining-tokens"] == "0"
    assert reply.headers["x-ratelimit-limit-tokens"] == "60"


def test_an_answer_that_its_client_left_counts_too(keys, wait_until):
    keys.add("alice", tokens_per_minute=200)
    live = keys.serve(step_delay_s=0.005)
    body = {"prompt": "x" * 150}
    with live.connect("/generate", body, Authorization="Bearer alice") as stream:
        stream.head()
        for _ in range(60):
            stream.chunk()
    wait_until(lambda: live.model.engine.stats().num_running == 0)
    assert ask(live, "alice").status == 429


def test_requests_at_once_are_limited_and_places_are_given_back(keys, wait_until):
    keys.add("alice", concurrency=1)
    live = keys.serve(step_delay_s=0.01)
    for leave in ("at the end", "in the middle"):
        with live.connect("/generate", {"prompt": "x" * 40}, Authorization="Bearer alice") as it:
            it.head()
            reply = ask(live, "alice")
            assert (reply.status, reply.error()["code"]) == (429, "rate_limit_exceeded")
            if leave == "at the end":
                it.chunks()
        wait_until(lambda: ask(live, "alice").status == 200)
    assert ask(live, "alice", body={"prompt": "x" * 9000}).status == 400
    assert ask(live, "alice").status == 200


def test_counts_and_log_tell_names_and_never_secrets(keys, caplog):
    caplog.set_level("INFO", logger="twostroke.server")
    keys.file.change(lambda known: created(known, "alice", "s3cret", datetime.now(UTC), {}))
    live = keys.serve({"keys": ["c0nfigured"]})
    for secret in ("s3cret", "c0nfigured", "wr0ng"):
        ask(live, secret, body={"prompt": "hi", "stream": False})
    page = live.get("/metrics", Authorization="Bearer s3cret").body.decode()
    assert 'twostroke_key_requests_total{key="alice",status="200"} 1.0' in page
    assert 'twostroke_key_requests_total{key="keys[0]",status="200"} 1.0' in page
    assert 'twostroke_key_tokens_total{key="alice",kind="prompt"} 2.0' in page
    assert 'twostroke_key_tokens_total{key="alice",kind="completion"} ' in page
    assert " key=alice " in caplog.text
    for secret in ("s3cret", "c0nfigured", "wr0ng"):
        assert secret not in page
        assert secret not in caplog.text


def test_reread_takes_a_file_up_that_looks_unchanged(keys):
    keys.add("alice")
    live = keys.serve()
    before = keys.file.path.stat()
    text = keys.file.path.read_text(encoding="utf-8").replace('"alice"', '"carol"')
    keys.file.path.write_text(text, encoding="utf-8")
    os.utime(keys.file.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    live.run(live.endpoint.reread())
    ask(live, "alice")  # the secret is the same, the name another
    page = live.get("/metrics", Authorization="Bearer alice").body.decode()
    assert 'key="carol"' in page
    assert 'key="alice"' not in page
