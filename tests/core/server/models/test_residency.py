"""Models that are loaded when somebody asks for them, and leave when nobody does."""

from __future__ import annotations

import threading

import pytest

from twostroke.errors import BundleError

LAZY = {"load": "first_use"}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def in_thread(function) -> tuple[threading.Thread, list]:
    found: list = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    return thread, found


def test_a_model_is_loaded_when_it_is_asked_for_and_stays(serve_many):
    many = serve_many({"name": "a"}, {"name": "b", **LAZY})
    assert many.loads == ["a"]
    assert many.health()["status"] == "ok"
    assert [m["status"] for m in many.health()["models"]] == ["ready", "unloaded"]
    assert many.generate("b").body == "→hi".encode()
    assert many.generate("b").body == "→hi".encode()
    assert many.loads == ["a", "b"]
    assert many.states() == {"a": "ready", "b": "ready"}


def test_requests_that_come_while_it_loads_wait_for_the_one_load(serve_many, wait_until):
    many = serve_many({"name": "a"}, {"name": "b", **LAZY})
    many.may_load.clear()
    waiting = [in_thread(lambda: many.generate("b")) for _ in range(3)]
    wait_until(lambda: many.call(lambda: many.models.served["b"].num_waiting) == 3)
    assert many.generate("a").status == 200, "others are answered meanwhile"
    assert many.health()["models"][1]["status"] == "loading"
    assert many.health()["status"] == "ok"
    many.may_load.set()
    for thread, found in waiting:
        thread.join(60)
        assert found[0].body == "→hi".encode()
    assert many.loads == ["a", "b"]


def test_who_has_waited_long_enough_gets_a_503_and_the_load_goes_on(serve_many, wait_until):
    many = serve_many({"name": "a", **LAZY}, server={"load_wait_s": 0})
    many.may_load.clear()
    reply = many.generate("a")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
    assert "still loading" in reply.error()["message"]
    many.may_load.set()
    wait_until(lambda: many.states() == {"a": "ready"})
    assert many.generate("a").status == 200
    assert many.loads == ["a"]


def test_while_the_start_loads_requests_wait_too(serve_many, wait_until):
    many = serve_many({"name": "a"}, start=False)
    many.may_load.clear()
    thread, found = in_thread(lambda: many.generate("a"))
    wait_until(lambda: many.call(lambda: many.models.served["a"].num_waiting) == 1)
    assert many.health()["status"] == "loading"
    many.may_load.set()
    many.run(many.residency.start())
    thread.join(60)
    assert found[0].status == 200
    assert many.loads == ["a"]


def test_a_load_that_fails_is_told_to_who_asked_and_tried_again_after_a_pause(serve_many, clock):
    many = serve_many({"name": "a"}, {"name": "b", **LAZY})
    many.models.clock = clock
    many.fault = BundleError("weights.bin is truncated.")
    for pause_s in (5, 10, 20):
        reply = many.generate("b")
        assert (reply.status, reply.headers["Retry-After"]) == (503, str(pause_s))
        assert "could not be loaded: weights.bin is truncated." in reply.error()["message"]
        loads = list(many.loads)
        clock.now += pause_s - 1
        again = many.generate("b")
        assert (again.status, again.headers["Retry-After"]) == (503, "1")
        assert many.loads == loads, "no try before the pause is over"
        clock.now += 1
    shown = many.health()["models"][1]
    assert shown == {"name": "b", "status": "failed", "reason": "weights.bin is truncated."}
    assert many.health()["status"] == "ok"
    many.fault = None
    assert many.generate("b").status == 200
    assert many.generate("a").status == 200


def test_a_model_nobody_uses_leaves_when_its_time_is_over(serve_many, wait_until, clock):
    many = serve_many({"name": "a", "keep_alive_s": 60, **LAZY}, {"name": "b"}, start=False)
    many.models.clock = clock
    many.run(many.residency.start())
    many.generate("a")
    wait_until(many.is_idle)
    clock.now += 59
    many.call(many.residency.sweep)
    assert many.states() == {"a": "ready", "b": "ready"}
    many.generate("a")
    wait_until(many.is_idle)
    clock.now += 59
    many.call(many.residency.sweep)
    assert many.states()["a"] == "ready", "its time begins anew with each answer"
    clock.now += 1
    many.call(many.residency.sweep)
    wait_until(lambda: many.states() == {"a": "unloaded", "b": "ready"})
    with pytest.raises(Exception, match="closed"):
        many.opened[1].complete("hi")
    assert many.generate("a").body == "→hi".encode()
    assert many.loads == ["b", "a", "a"]


def test_a_model_is_not_idle_while_it_streams(serve_many, wait_until, clock):
    slow = {"options": {"step_delay_s": 0.02}}
    many = serve_many({"name": "a", "keep_alive_s": 0, **slow, **LAZY}, start=False)
    many.models.clock = clock
    many.run(many.residency.start())
    with many.stream("a", "x" * 40) as raw:
        clock.now += 3600
        many.call(many.residency.sweep)
        assert many.states() == {"a": "ready"}
        chunks, is_clean = raw.chunks()
    assert (b"".join(chunks), is_clean) == (b"x" * 40, True)

    def is_gone() -> bool:
        many.call(many.residency.sweep)
        return many.states() == {"a": "unloaded"}

    wait_until(is_gone)


def test_an_unload_waits_for_what_runs_and_a_request_after_it_loads_anew(serve_many, wait_until):
    many = serve_many({"name": "a", "options": {"step_delay_s": 0.02}})
    with many.stream("a", "x" * 60) as raw:
        served = many.models.served["a"]
        many.call(many.residency.unload, served)
        wait_until(lambda: many.states() == {"a": "unloading"})
        statuses = [(m["name"], m["status"]) for m in many.health()["models"]]
        assert statuses == [("a", "unloading"), ("a", "unloading")]
        assert many.generate("a", "y").body == "→y".encode(), "beside the one that ends"
        chunks, is_clean = raw.chunks()
    assert (b"".join(chunks), is_clean) == (b"x" * 60, True)
    wait_until(lambda: not many.models.leaving)
    assert many.states() == {"a": "ready"}
    assert many.loads == ["a", "a"]


def test_an_answer_that_outlives_its_connection_is_waited_for(serve_many, wait_until):
    slow = {"options": {"step_delay_s": 0.03}}
    many = serve_many({"name": "a", **slow}, server={"resume_s": 60})
    body = {"prompt": "x" * 50, "model": "a"}
    events = {"Accept": "text/event-stream"}
    with many.live.connect("/generate", body, **events) as raw:
        raw.head()
        first = raw.chunk().decode()
    served = many.models.served["a"]
    wait_until(lambda: many.call(lambda: not served.resident._num_leases))
    many.call(many.residency.unload, served)
    assert many.states() == {"a": "unloading"}
    last_id = first.partition("\n")[0].removeprefix("id: ")
    with many.live.connect("/generate", body, **events, Last_Event_ID=last_id) as raw:
        assert b" 200 " in raw.head()
        chunks, is_clean = raw.chunks()
    assert is_clean
    assert b"".join(chunks).count(b'"text":"x"') == 50
    wait_until(lambda: many.states() == {"a": "unloaded"})


def test_a_full_queue_of_one_model_is_nothing_to_another(serve_many, wait_until):
    slow = {"options": {"step_delay_s": 0.05}}
    scheduler = {"max_rows": 1, "max_queue": 1}
    many = serve_many({"name": "full", **slow}, {"name": "free"}, scheduler=scheduler)
    with many.stream("full", "x" * 60) as raw:
        thread, waiting = in_thread(lambda: many.generate("full", "y"))
        wait_until(lambda: many.models.find("full").engine.stats().num_waiting == 1)
        assert many.generate("full").status == 503
        for _ in range(5):
            assert many.generate("free").body == "→hi".encode()
        assert many.generate("full").status == 503, "it is still full"
        assert raw.chunks() == ([b"x"] * 60, True)
    thread.join(60)
    assert waiting[0].body == "→y".encode()
