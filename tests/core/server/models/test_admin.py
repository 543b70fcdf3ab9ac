"""Operators load and unload models by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from twostroke.api_keys import KeyFile
from twostroke.api_keys.edits import created
from twostroke.errors import BundleError

LAZY = {"load": "first_use"}


def post(many, name: str, what: str, **headers: str):
    return many.live.ask("POST", f"/admin/models/{name}/{what}", None, headers)


def test_a_model_comes_and_goes_by_hand(serve_many):
    many = serve_many({"name": "org/a:b", "aliases": ["a"], **LAZY})
    for name in ("a", "org/a:b", "org%2Fa:b"):
        loaded = post(many, name, "load")
        assert (loaded.status, loaded.json()) == (200, {"name": "org/a:b", "status": "ready"})
    assert many.loads == ["org/a:b"]
    for _ in range(2):
        gone = post(many, "a", "unload")
        assert (gone.status, gone.json()) == (200, {"name": "org/a:b", "status": "unloaded"})
    assert "closed" in repr(many.opened[0])
    assert many.generate("a").status == 200
    assert post(many, "b", "load").status == 404


def test_an_unload_that_must_wait_says_so(serve_many):
    slow = {"options": {"step_delay_s": 0.02}}
    many = serve_many({"name": "a", **slow}, server={"load_wait_s": 0.05})
    with many.stream("a", "x" * 60) as raw:
        reply = post(many, "a", "unload")
        assert (reply.status, reply.json()["status"]) == (202, "unloading")
        assert raw.chunks() == ([b"x"] * 60, True)


def test_a_load_by_hand_tries_again_at_once(serve_many):
    many = serve_many({"name": "a", **LAZY})
    many.fault = BundleError("weights.bin is truncated.")
    for _ in range(2):
        reply = post(many, "a", "load")
        assert reply.status == 503
        assert "weights.bin is truncated." in reply.error()["message"]
    assert many.loads == ["a", "a"]
    many.fault = None
    assert post(many, "a", "load").status == 200


def test_users_are_no_operators(serve_many, tmp_path):
    file, secret = KeyFile(tmp_path / "keys.json"), "u" * 40
    file.change(lambda keys: created(keys, "alice", secret, datetime.now(UTC), {}))
    server = {"keys": ["k" * 40], "key_file": str(file.path)}
    many = serve_many({"name": "a"}, server=server)
    assert post(many, "a", "unload").status == 401
    refused = post(many, "a", "unload", Authorization=f"Bearer {secret}")
    assert (refused.status, refused.error()["code"]) == (403, "operators_only")
    assert many.states() == {"a": "ready"}
    assert post(many, "a", "unload", Authorization="Bearer " + "k" * 40).status == 200


@pytest.mark.parametrize("what", ["load", "unload"])
def test_without_keys_only_this_machine_may(serve_many, monkeypatch, what):
    many = serve_many({"name": "a"})
    monkeypatch.setattr("twostroke.server.admin.is_loopback", lambda name: name != "127.0.0.1")
    refused = post(many, "a", what)
    assert (refused.status, refused.error()["code"]) == (403, "operators_only")
    assert many.states() == {"a": "ready"}


def test_a_server_that_was_given_its_models_loads_none(live):
    reply = live.post("/admin/models/echo/unload", "")
    assert (reply.status, reply.error()["code"]) == (403, "operators_only")
    assert "was given its models" in reply.error()["message"]
