"""A changed configuration is taken up while streams run, and none of them notices."""

from __future__ import annotations

import pytest

from twostroke.errors import BundleError, ConfigError
from twostroke.life.room import HOST, Demand

SLOW = {"options": {"step_delay_s": 0.02}}
TEXT = "x" * 60


def whole(raw) -> bool:
    """Reads a stream to its end; whether it is all there and ends cleanly."""
    chunks, is_clean = raw.chunks()
    return (b"".join(chunks), is_clean) == (TEXT.encode(), True)


def test_models_are_added_removed_and_changed_and_others_are_left_alone(
    serve_many, config_of, wait_until
):
    many = serve_many({"name": "stays"}, {"name": "goes", **SLOW}, {"name": "changes", **SLOW})
    streams = [many.stream(name, TEXT) for name in ("stays", "goes", "changes")]
    stays = many.models.find("stays")
    many.reload(
        config_of(
            {"name": "stays", "aliases": ["still"], "keep_alive_s": 60},
            {"name": "changes", "context_tokens": 100, **SLOW},
            {"name": "comes"},
            {"name": "lazy", "load": "first_use"},
        )
    )
    assert many.loads == ["stays", "goes", "changes", "changes", "comes"]
    assert many.models.find("still") is stays
    assert many.states() == {
        "stays": "ready",
        "changes": "ready",
        "comes": "ready",
        "lazy": "unloaded",
    }
    assert many.models.find("changes").context_tokens == 100
    assert many.generate("goes").status == 404
    assert many.generate("comes").status == many.generate("lazy").status == 200
    leaving = [m["name"] for m in many.health()["models"] if m["status"] == "unloading"]
    assert sorted(leaving) == ["changes", "goes"]
    assert many.health()["status"] == "ok"
    for raw in streams:
        with raw:
            assert whole(raw)
    wait_until(lambda: not many.models.leaving)
    assert len(many.opened) - 2 == len(list(many.models.residents()))


def test_a_wrong_file_changes_nothing(serve_many, caplog):
    many = serve_many({"name": "a", **SLOW})
    with many.stream("a", TEXT) as raw:
        many.reload(ConfigError(["c.yaml:2: server.prot: unknown key", "c.yaml:9: models: odd"]))
        assert many.generate("a", "y").status == 200
        assert many.health()["config"] == {"pending": [], "num_problems": 2}
        assert whole(raw)
    (told,) = [r.getMessage() for r in caplog.records if "is wrong" in r.getMessage()]
    assert told.splitlines()[1:] == [
        "c.yaml:2: server.prot: unknown key",
        "c.yaml:9: models: odd",
    ]
    assert many.loads == ["a"]


def test_a_right_file_after_a_wrong_one_is_taken(serve_many, config_of):
    many = serve_many({"name": "a"})
    many.reload(ConfigError(["c.yaml:2: odd"]))
    many.reload(config_of({"name": "a", "aliases": ["b"]}))
    assert many.health()["config"] == {"pending": [], "num_problems": 0}
    assert many.generate("b").status == 200


def test_a_model_that_cannot_be_loaded_anew_runs_on_as_it_was(serve_many, config_of):
    many = serve_many({"name": "a", **SLOW})
    with many.stream("a", TEXT) as raw:
        many.fault = BundleError("weights.bin is truncated.")
        many.reload(config_of({"name": "a", "context_tokens": 64, **SLOW}, {"name": "b"}))
        shown = {m["name"]: m for m in many.health()["models"]}
        assert (shown["a"]["status"], shown["a"]["has_fault"]) == ("ready", True)
        assert (shown["b"]["status"], shown["b"]["reason"]) == (
            "failed",
            "weights.bin is truncated.",
        )
        assert many.generate("a", "y").status == 200
        assert whole(raw)
    many.fault = None
    many.reload(config_of({"name": "a", "context_tokens": 64, **SLOW}))
    assert many.models.find("a").context_tokens == 64
    assert many.health()["models"][0]["has_fault"] is False


def test_without_room_for_both_the_old_one_leaves_first(serve_many, config_of, monkeypatch):
    mib = 2**20
    served = "twostroke.server.served.Resident"
    monkeypatch.setattr("twostroke.server.room.free_memory_bytes", lambda: 700 * mib)
    for name, value in (("place", HOST), ("taken_bytes", 0), ("planned_bytes", 500 * mib)):
        monkeypatch.setattr(f"{served}.{name}", value)

    def demand_of(settings):
        return Demand(HOST, 300 * mib, 100 * mib, 1)

    many = serve_many({"name": "a", **SLOW}, demand_of=demand_of)
    with many.stream("a", TEXT) as raw:
        many.reload(config_of({"name": "a", "context_tokens": 64, **SLOW}), wait=False)
        assert whole(raw)
    many.run(many._reload.settled())
    assert many.models.find("a").context_tokens == 64
    assert many.loads == ["a", "a"]


def test_a_change_of_the_scheduler_opens_every_model_that_is_loaded(serve_many, config_of):
    models = {"name": "a"}, {"name": "b", "load": "first_use"}
    many = serve_many(*models)
    many.reload(config_of(*models, scheduler={"max_rows": 2}))
    assert many.loads == ["a", "a"]
    assert many.models.find("a").engine.memory_plan.num_rows == 2


def test_limits_and_defaults_of_a_model_need_no_new_engine(serve_many, config_of):
    many = serve_many({"name": "a", **SLOW}, scheduler={"max_rows": 1})
    with many.stream("a", TEXT) as raw:
        model = {"name": "a", "sampling": {"max_tokens": 3}, **SLOW}
        limits = {"max_rows": 1, "max_queue": 0, "request_timeout_s": 30}
        many.reload(config_of(model, scheduler=limits))
        assert many.loads == ["a"]
        assert "(the limit is 0)" in many.generate("a").error()["message"]
        assert whole(raw)
    assert many.generate("a", "y" * 9).body == "→yy".encode()
    many.reload(config_of(model, scheduler={**limits, "request_timeout_s": 0.001}))
    assert many.generate("a", "y" * 9, stream=False).status == 504


def test_limits_and_keys_are_taken_over_and_what_is_fixed_is_pending(serve_many, config_of, caplog):
    many = serve_many({"name": "a", **SLOW}, {"name": "b"})
    with many.stream("a", TEXT) as raw:
        server = {
            "port": 9999,
            "host": "127.0.0.2",
            "keys": ["k" * 40],
            "max_body": 100,
            "default_model": "b",
            "load_wait_s": 3,
            "shutdown_timeout_s": 7,
        }
        many.reload(config_of({"name": "a", **SLOW}, {"name": "b"}, server=server))
        assert whole(raw)
    assert many.generate("a").status == 401
    headers = {"Authorization": "Bearer " + "k" * 40}
    reply = many.live.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, **headers)
    assert reply.json()["model"] == "b"
    assert many.live.post("/generate", {"prompt": "x" * 200}, **headers).status == 413
    assert many.residency.load_wait_s == 3
    assert many.live.endpoint.shutdown_timeout_s == 7
    pending = ["server.host", "server.port"]
    assert many.health()["config"] == {"pending": pending, "num_problems": 0}
    assert "only a restart takes it up: server.host, server.port" in caplog.text
    many.reload(config_of({"name": "a", **SLOW}, {"name": "b"}))
    assert many.health()["config"]["pending"] == []
    assert many.generate("a").status == 200
    assert many.loads == ["a", "b"]


def test_keys_that_would_leave_a_door_open_are_not_taken_away(serve_many, config_of):
    server = {"host": "0.0.0.0", "keys": ["k" * 40], "insecure": ["tls"]}
    many = serve_many({"name": "a"}, server=server)
    many.reload(config_of({"name": "a"}, server={**server, "keys": []}))
    assert many.health()["config"]["num_problems"] == 1
    assert many.generate("a").status == 401


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_model_that_is_taken_out_while_it_loads_does_not_stay(
    serve_many, config_of, wait_until, is_removed
):
    lazy = {"name": "b", "load": "first_use"}
    many = serve_many({"name": "a"}, lazy, server={"load_wait_s": 0})
    many.may_load.clear()
    assert many.generate("b").status == 503
    many.reload(config_of({"name": "a"}, *([] if is_removed else [lazy])), wait=False)
    many.may_load.set()
    wait_until(lambda: len(many.opened) == 2)
    if is_removed:
        wait_until(lambda: "closed" in repr(many.opened[1]))
    else:
        wait_until(lambda: many.states()["b"] == "ready")
        assert "closed" not in repr(many.opened[1])
