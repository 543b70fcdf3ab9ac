"""Many at once, too long, gone again: each gets its own answer, and nobody waits for nothing."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from twostroke.engine import EngineLimits
from twostroke.testing.bundles import make_echo_bundle
from twostroke.testing.engines import EchoEngine, echo_request
from twostroke.types import FinishedEvent, FinishReason

CHAT = "/v1/chat/completions"
EVERY_SURFACE = pytest.mark.parametrize("path", ["/generate", "/v1/completions", CHAT])
BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
LINE = "The ferry left the island a little after six, when the harbour was still grey. "
STORY = "Once upon a time"
PASSENGERS = ("cook", "captain", "old dog", "children", "price", "engine", "letter", "doctor")
LONG = {"max_tokens": 1500, "ignore_eos": True}
AT_ONCE_STEPS = 40  # a step takes milliseconds, and so does the notice of a closed connection


def body_of(path, prompt):
    return (
        {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    )


@pytest.mark.cases(17)
@EVERY_SURFACE
@BOTH_MODES
def test_a_prompt_beyond_the_context_is_refused_with_both_sizes(live, path, stream):
    (published,) = live.get("/v1/models").json()["data"]
    limit = published["max_model_len"]
    (model,) = live.health()["models"]
    assert model["context_tokens"] == limit == 8192
    error = live.post(path, {**body_of(path, " a" * 9000), "stream": stream}).error()
    assert error["code"] == "context_length_exceeded"
    asked = 9000 if path != CHAT else 9000 + 30
    assert f"{asked}" in error["message"].replace(",", "")
    assert f"{limit}" in error["message"].replace(",", "")


@pytest.mark.cases(17)
def test_the_limit_that_is_published_is_enforced_to_the_token(small):
    (published,) = small.get("/v1/models").json()["data"]
    limit = published["max_model_len"]
    last = small.say("/generate", [504] * (limit - 1), max_tokens=5)
    assert (last.reason, last.num_tokens) == ("length", 1)
    assert str(limit) in small.post("/generate", {"prompt": [504] * limit}).error()["message"]


@pytest.mark.cases(20)
def test_eight_at_once_get_what_each_gets_alone(live):
    prompts = [  # from 20 tokens to 300
        f"{LINE * (1 + 2 * number)}The {who}" for number, who in enumerate(PASSENGERS)
    ]

    def ask(prompt):
        return live.say("/v1/completions", prompt, max_tokens=24)

    alone = [ask(prompt) for prompt in prompts]
    assert len({said.text for said in alone}) > 4
    steps = live.load()["num_steps"]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts))
    assert together == alone
    assert live.load()["num_steps"] - steps < 8 * 24, "they shared steps"


@pytest.mark.cases(20)
def test_answers_are_the_same_after_others_were_cancelled(live):
    expected = live.say("/generate", LINE, max_tokens=32)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(live.asking("/generate", {"prompt": f"{number} {LINE}", **LONG}))
        live.wait_until(lambda load: load["num_running"] == 4)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(live.say, "/generate", LINE, max_tokens=32)
            stack.close()
            assert answer.result() == expected
    live.wait_until(lambda load: load["num_running"] == 0)
    assert live.say("/generate", LINE, max_tokens=32) == expected


@pytest.mark.cases(23)
@BOTH_MODES
def test_whoever_goes_away_in_decode_frees_the_row(live, stream):
    other = live.say("/generate", STORY, max_tokens=40)
    before = live.load()
    with ThreadPoolExecutor(1) as pool:
        with live.asking("/generate", {"prompt": LINE, "stream": stream, **LONG}):
            live.wait_until(lambda load: load["num_steps"] > before["num_steps"] + 5)
            begun = live.load()
            noticing = pool.submit(live.say, "/generate", STORY, max_tokens=40)
        after = live.wait_until(lambda load: load["num_aborted"] > before["num_aborted"])
        assert noticing.result() == other, "nobody else notices"
    assert after["num_steps"] - begun["num_steps"] < AT_ONCE_STEPS
    live.wait_until(lambda load: load["num_running"] == 0)
    assert live.load()["num_aborted"] == before["num_aborted"] + 1
    assert live.say("/generate", LINE, max_tokens=4).num_tokens == 4


@pytest.mark.cases(23)
@BOTH_MODES
def test_whoever_goes_away_in_prefill_frees_the_row(live, stream):
    other = live.say("/generate", STORY, max_tokens=24)
    before = live.load()
    ids = random.Random(int(stream)).choices(range(1000, 40000), k=8000)  # some 32 chunks
    with ThreadPoolExecutor(1) as pool:
        with live.asking("/generate", {"prompt": ids, "stream": stream, **LONG}):
            begun = live.wait_until(lambda load: load["num_steps"] > before["num_steps"])
        after = live.wait_until(lambda load: load["num_running"] == 0)
        assert after["num_aborted"] == before["num_aborted"] + 1
        assert after["num_steps"] - begun["num_steps"] <= 4, "the chunk it was at, hardly more"
        noticing = pool.submit(live.say, "/generate", STORY, max_tokens=24)
        assert noticing.result() == other, "nobody else notices"


@pytest.mark.cases(23)
@BOTH_MODES
def test_whoever_goes_away_in_the_queue_is_never_run(small, stream):
    before = small.load()
    with small.asking("/generate", {"prompt": LINE, **LONG}) as running:
        small.wait_until(lambda load: load["num_running"] == 1)
        with small.asking("/generate", {"prompt": LINE, "stream": stream}):
            small.wait_until(lambda load: load["num_waiting"] == 1)
        small.wait_until(lambda load: load["num_waiting"] == 0)
        assert running.recv(17) == b"HTTP/1.1 200 OK\r\n", "nobody else notices"
        assert small.load()["num_running"] == 1
    after = small.wait_until(lambda load: load["num_running"] == 0)
    assert after["num_aborted"] == before["num_aborted"] + 2


@pytest.mark.cases(23)
@pytest.mark.parametrize("num_steps_before", [0, 1, 8], ids=["queue", "prefill", "decode"])
def test_an_abort_frees_a_slot_within_two_steps(tmp_path, num_steps_before):
    """Steps are counted by running them one by one; the other sequence of the queue goes on."""
    limits = EngineLimits(max_rows=1, prefill_chunk_tokens=4, kv_budget_bytes=2**20)
    events = []
    with EchoEngine(make_echo_bundle(tmp_path / "echo"), limits) as echo:
        for name in ("first", "second"):
            request = echo_request(name, "a prompt of several chunks")
            echo.engine.submit(request, lambda e, n=name: events.append((n, e)), arrived_at=0.0)
        for _ in range(num_steps_before):
            echo.engine.run_step()
        gone, other = ("second", "first") if num_steps_before == 0 else ("first", "second")
        echo.engine.abort(gone)
        for _ in range(2):
            echo.engine.run_step()
        ends = [(n, e.reason) for n, e in events if isinstance(e, FinishedEvent)]
        assert ends == [(gone, FinishReason.ABORTED)]
        stats = echo.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (1, 0)
        while not any(n == other and isinstance(e, FinishedEvent) for n, e in events):
            echo.engine.run_step()


@pytest.mark.cases(24)
def test_a_full_queue_answers_at_once(small):
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(small.asking("/generate", {"prompt": LINE, **LONG}))
            small.wait_until(lambda load, n=number: load["num_running"] + load["num_waiting"] > n)
        for path in ("/generate", "/v1/completions", CHAT):
            for stream in (True, False):
                reply = small.post(path, {**body_of(path, "hi"), "stream": stream})
                assert reply.error(503)["type"] == "server_error"
                assert int(reply.headers["Retry-After"]) >= 1
        assert small.load()["num_running"] == 1, "the first was still running"
    small.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 0)
    assert small.say("/generate", "hi", max_tokens=2).num_tokens == 2
