"""Many at once: the same answers as alone, a bounded queue, and a health check that stays quick."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from twostroke.config.schema import ServerConfig

PROMPTS = [f"{number}: " + "abcdefgh" * number for number in range(1, 9)]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_eight_at_once_answer_what_each_answers_alone(serve_echo, path):
    live = serve_echo(step_delay_s=0.002)

    def ask(prompt):
        reply = live.post(path, {"prompt": prompt, "temperature": 2, "seed": 7, "max_tokens": 40})
        return reply.body if path == "/generate" else reply.json()["choices"][0]["text"]

    alone = [ask(prompt) for prompt in PROMPTS]
    steps_alone = live.model.engine.stats().num_steps
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(ask, PROMPTS))
    assert together == alone
    assert live.model.engine.stats().num_steps - steps_alone < steps_alone / 2, "they were batched"


def test_a_full_queue_answers_503_at_once(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.01, scheduler={"max_rows": 1, "max_queue": 1})
    stats = live.model.engine.stats
    with live.connect("/generate", {"prompt": "x" * 200}) as running:
        running.head()
        with live.connect("/generate", {"prompt": "y"}) as waiting:
            wait_until(lambda: stats().num_waiting == 1)
            for path in ("/generate", "/v1/completions"):
                for stream in (True, False):
                    reply = live.post(path, {"prompt": "z", "stream": stream})
                    assert reply.status == 503
                    assert int(reply.headers["Retry-After"]) >= 1
                    assert reply.error()["type"] == "server_error"
            assert stats().num_running == 1, "the first was still running"
            running.close()
            waiting.head()
            assert b"".join(waiting.chunks()[0]) == "→y".encode()


def test_health_tells_who_runs_where_and_how_many_wait(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.005, scheduler={"max_rows": 1})
    with live.connect("/generate", {"prompt": "x" * 100}) as first:
        first.head()
        with live.connect("/generate", {"prompt": "y"}):
            wait_until(lambda: live.model.engine.stats().num_waiting == 1)
            reply = live.get("/health")
    assert reply.status == 200
    health = reply.json()
    assert health["status"] == "ok"
    assert health["num_requests_in_flight"] == 2
    (model,) = health["models"]
    assert model["name"] == "echo"
    assert model["status"] == "ready"
    assert (model["load"]["num_running"], model["load"]["num_waiting"]) == (1, 1)
    assert model["fallback"] is None
    for stroke in ("prefill", "decode"):
        assert model["placement"][stroke]["backend"] == "echo"
        assert sum(model["placement"][stroke]["nodes"].values()) > 0
    assert model["memory"]["kv_bytes"] > 0


def test_health_answers_while_streams_run_and_a_long_prompt_is_read(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.005)
    with ThreadPoolExecutor(9) as pool:
        streams = [pool.submit(live.post, "/generate", {"prompt": "x" * 100}) for _ in range(8)]
        wait_until(lambda: live.model.engine.stats().num_running > 0)
        long = pool.submit(live.post, "/generate", {"prompt": "word " * 200_000})
        answered = 0
        while not all(stream.done() for stream in (*streams, long)):
            assert live.get("/health").status == 200
            answered += 1
        assert long.result().status == 400
    assert answered >= 5
    assert all(stream.result().body == "→".encode() + b"x" * 100 for stream in streams)


def test_while_a_model_loads_only_health_answers(make_server):
    live = make_server(["slow"], ServerConfig(port=0))
    live.call(lambda: live.registry.note_stage("slow", "trace (40%)"))
    reply = live.get("/health")
    assert reply.status == 503
    assert reply.json()["status"] == "loading"
    assert reply.json()["models"] == [{"name": "slow", "status": "loading", "stage": "trace (40%)"}]
    for path in ("/generate", "/v1/completions"):
        reply = live.post(path, {"prompt": "hi"})
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) >= 1
        assert "'slow' is still loading" in reply.error()["message"]
    (listed,) = live.get("/v1/models").json()["data"]
    assert (listed["id"], listed["status"]) == ("slow", "loading")


def test_of_several_models_the_request_names_one_or_means_the_first(make_server, echo_model):
    live = make_server(["first", "second"], ServerConfig(port=0))
    live.call(lambda: live.registry.add(echo_model("second")))
    ready = {"model": "second", "prompt": "hi"}
    assert live.post("/generate", ready).body == "→hi".encode()
    assert live.post("/generate", {**ready, "model": "first"}).status == 503
    reply = live.post("/generate", {"prompt": "hi"})
    assert reply.status == 503
    assert "'first' is still loading" in reply.error()["message"]
    assert live.post("/generate", {**ready, "model": "third"}).status == 404
    assert live.get("/health").json()["status"] == "loading"


def test_a_process_is_alive_while_it_loads_and_while_it_stops(make_server, serve_echo):
    loading = make_server(["slow"], ServerConfig(port=0, keys=("key",)))
    assert loading.get("/health").status == 503
    live = serve_echo()
    live.call(live.endpoint._in_flight.refuse_new)
    assert live.get("/health").json()["status"] == "stopping"
    for server in (loading, live):
        reply = server.get("/health/live", Host="10.1.2.3:8080")
        assert (reply.status, reply.json()) == (200, {"status": "alive"})
