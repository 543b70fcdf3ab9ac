"""Which model a request means: names, aliases, the default."""

from __future__ import annotations


def test_aliases_mean_their_model_and_the_answer_says_its_name(serve_many):
    many = serve_many({"name": "a"}, {"name": "b", "aliases": ["gpt-4o-mini", "org/b:latest"]})
    for alias in ("b", "gpt-4o-mini", "org/b:latest"):
        reply = many.generate(alias, stream=False, max_tokens=1)
        assert reply.status == 200
        answer = many.live.post("/v1/completions", {"model": alias, "prompt": "x", "max_tokens": 1})
        assert answer.json()["model"] == "b"
        assert many.live.get(f"/v1/models/{alias}").json()["id"] == "b"
    missing = many.generate("gpt-4o")
    assert missing.status == 404
    assert "served are: a, b." in missing.error()["message"]


def test_the_first_model_answers_where_none_is_named(serve_many):
    many = serve_many({"name": "a"}, {"name": "b"})
    facts = many.live.post("/generate", {"prompt": "x"}, Accept="application/json").json()
    assert facts["model"] == "a"


def test_the_default_may_be_another_one_and_an_alias(serve_many):
    server = {"default_model": "bee"}
    many = serve_many({"name": "a"}, {"name": "b", "aliases": ["bee"]}, server=server)
    facts = many.live.post("/generate", {"prompt": "x"}, Accept="application/json").json()
    assert facts["model"] == "b"


def test_all_that_is_served_is_listed_loaded_or_not(serve_many):
    many = serve_many(
        {"name": "a", "aliases": ["first"]},
        {"name": "b", "load": "first_use", "context_tokens": 64},
        {"name": "c", "load": "first_use"},
    )
    listed = many.live.get("/v1/models").json()["data"]
    shown = [(m["id"], m["status"], m["max_model_len"], m["aliases"]) for m in listed]
    assert shown == [
        ("a", "ready", many.models.find("a").context_tokens, ["first"]),
        ("b", "unloaded", 64, []),
        ("c", "unloaded", None, []),
    ]
    assert many.live.get("/v1/models/b").json() == listed[1]
