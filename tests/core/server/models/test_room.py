"""Models that do not all fit: who leaves, who is refused, and with what words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from twostroke.life.room import HOST, Demand

MIB = 2**20
MODEL = Demand(HOST, needs_bytes=300 * MIB, row_bytes=100 * MIB, num_rows=2)


@dataclass
class Memory:
    """A host whose free memory the test says; what models take of it is `MODEL`, all rows."""

    free_bytes: int
    demands: dict[str, Demand]

    def demand_of(self, settings) -> Demand | None:
        return self.demands.get(settings.model.name, MODEL)


@pytest.fixture
def serve_in(serve_many, monkeypatch) -> Callable[..., tuple]:
    """Serves models in so many MiB of memory."""

    def make(free_mib: int, *models: dict, demands: dict | None = None, **sections):
        memory = Memory(free_mib * MIB, demands or {})
        room = "twostroke.server.room"
        monkeypatch.setattr(f"{room}.free_memory_bytes", lambda: memory.free_bytes)
        # An echo model's own plan would say that it takes next to nothing.
        monkeypatch.setattr(f"{room}.Room.learn", lambda *_: None)
        served = "twostroke.server.served.Resident"
        monkeypatch.setattr(f"{served}.place", HOST)
        monkeypatch.setattr(f"{served}.taken_bytes", 0)
        monkeypatch.setattr(f"{served}.planned_bytes", 500 * MIB)
        return serve_many(*models, demand_of=memory.demand_of, **sections)

    return make


LAZY = {"load": "first_use", "keep_alive_s": 600}


def test_the_one_used_longest_ago_leaves_for_another(serve_in, wait_until):
    many = serve_in(1100, *({"name": name, **LAZY} for name in "abc"))
    many.generate("a")
    many.generate("b")
    many.generate("a")
    wait_until(many.is_idle)
    assert many.generate("c").body == "→hi".encode()
    assert many.states() == {"a": "ready", "b": "unloaded", "c": "ready"}
    wait_until(many.is_idle)
    assert many.generate("b").status == 200
    assert many.states() == {"a": "unloaded", "b": "ready", "c": "ready"}


def test_who_stays_by_its_policy_or_is_busy_does_not_leave(serve_in, wait_until):
    slow = {"options": {"step_delay_s": 0.02}}
    many = serve_in(
        1100, {"name": "stays"}, {"name": "busy", **LAZY, **slow}, {"name": "new", **LAZY}
    )
    with many.stream("busy", "x" * 80) as raw:
        reply = many.generate("new")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
        assert (
            "no room for the model 'new' now: it takes at least 400.0 MiB of host memory, and "
            "100.0 MiB can be had beside stays 500.0 MiB, busy 500.0 MiB"
        ) in reply.error()["message"]
        assert many.states() == {"stays": "ready", "busy": "ready", "new": "unloaded"}
        chunks, is_clean = raw.chunks()
    assert (b"".join(chunks), is_clean) == (b"x" * 80, True)
    wait_until(many.is_idle)
    assert many.generate("new").status == 200, "a refusal is no failure: no pause before the next"
    assert many.states() == {"stays": "ready", "busy": "unloaded", "new": "ready"}


def test_nobody_leaves_where_that_would_not_be_enough(serve_in, wait_until):
    huge = {"huge": replace(MODEL, needs_bytes=2000 * MIB)}
    many = serve_in(1100, {"name": "a", **LAZY}, {"name": "huge", **LAZY}, demands=huge)
    many.generate("a")
    wait_until(many.is_idle)
    assert many.generate("huge").status == 503
    assert many.states() == {"a": "ready", "huge": "unloaded"}


def test_budgets_that_are_left_to_the_server_are_shares(serve_in):
    own = {"b": replace(MODEL, budget_bytes=150 * MIB)}
    models = {"name": "a"}, {"name": "b", "kv": {"budget": "150MiB"}}
    many = serve_in(1400, *models, demands=own, start=False)
    seen = {}
    load = many.residency._load

    def noting(settings, report):
        seen[settings.model.name] = settings.model.kv.budget
        return load(settings, report)

    many.residency._load = noting
    many.run(many.residency.start())
    # 1400 - 140 - 300 of its own - 450 of the other one's - 100 leaves 410, but it has two rows.
    assert seen == {"a": 200 * MIB, "b": 150 * MIB}


def test_what_nobody_knows_is_let_in(serve_in):
    many = serve_in(1, {"name": "a"}, {"name": "b"}, demands={"a": None, "b": None})
    assert many.states() == {"a": "ready", "b": "ready"}


def test_once_loaded_a_models_own_plan_says_what_it_takes(serve_many, monkeypatch):
    # It was thought to take far more than there is next time, and takes a few kilobytes.
    guess = replace(MODEL, num_rows=8)
    monkeypatch.setattr("twostroke.server.room.free_memory_bytes", lambda: 450 * MIB)
    many = serve_many({"name": "a", **LAZY}, demand_of=lambda _: guess)
    assert many.generate("a").status == 200
    many.call(many.residency.unload, many.models.served["a"])
    monkeypatch.setattr("twostroke.server.room.free_memory_bytes", lambda: 100 * MIB)
    assert many.generate("a").status == 200
