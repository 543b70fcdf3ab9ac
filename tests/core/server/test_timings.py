"""Where the time of a request went, on every surface, under the same names."""

from __future__ import annotations

import json

import pytest

from twostroke.testing.bundles import make_echo_bundle

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}
OTHERS = ("template_ms", "tokenise_ms", "queued_ms", "prefill_ms", "other_ms")


def last_event(body: bytes) -> dict:
    """The timings of a stream of server-sent events: in the chunk with the finish reason."""
    events = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    (timed,) = [event for line in events if "timings" in (event := json.loads(line))]
    return timed["timings"]


def timings_of(live, path: str, question: dict, *, stream: bool) -> dict:
    headers = {"Accept": "application/x-ndjson"} if path == "/generate" and stream else {}
    if path == "/generate" and not stream:
        headers = {"Accept": "application/json"}
    reply = live.post(path, {**question, "stream": stream}, **headers)
    assert reply.status == 200
    if path == "/generate":
        return json.loads(reply.body.splitlines()[-1])["timings"]
    return last_event(reply.body) if stream else reply.json()["timings"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/generate", TEXT),
        ("/generate", CHAT),
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", CHAT),
    ],
)
def test_every_surface_tells_the_same_stages_and_they_add_up(live, path, question, stream):
    timings = timings_of(live, path, question, stream=stream)
    names = {"tokenise_ms", "queued_ms", "prefill_ms", "other_ms", "ttft_ms", "decode_ms"}
    names |= {"decode_tokens_per_s", "detokenise_ms", "total_ms", "prefill", "decode", "roofline"}
    names |= {"template_ms"} if "messages" in question else set()
    names |= {"blocked_ms"} if stream else set()
    assert set(timings) == names
    before = sum(timings.get(name, 0.0) for name in OTHERS)
    assert before == pytest.approx(timings["ttft_ms"], abs=0.005)  # each is rounded by itself
    assert timings["ttft_ms"] + timings["decode_ms"] <= timings["total_ms"] + 0.002
    beside = timings["detokenise_ms"] + timings.get("blocked_ms", 0.0)
    assert beside <= timings["total_ms"] + 0.002
    num_steps = timings["decode"]["num_steps"]
    # As many as the answer has tokens: its end is one, but the first came from prefill.
    assert num_steps == (len("→") + 1 + len("assistant\n") if "messages" in question else 6)
    assert timings["decode"]["busy_ms"] <= timings["decode_ms"] + 0.002
    assert sum(span["num_steps"] for span in timings["decode"]["steps"]) == num_steps
    assert timings["prefill"]["busy_ms"] <= timings["prefill_ms"] + 0.002


def test_compiling_a_constraint_is_a_stage(live):
    question = {"prompt": "hi", "choice": ["→hi"]}
    timings = timings_of(live, "/generate", question, stream=False)
    assert timings["constraint_ms"] > 0


def test_a_client_that_reads_keeps_nothing_waiting(live):
    assert timings_of(live, "/generate", TEXT, stream=True)["blocked_ms"] == 0.0


def test_a_client_that_does_not_read_is_seen(serve_echo, wait_until, tmp_path, caplog):
    caplog.set_level("INFO", "twostroke.server")
    bundle = make_echo_bundle(tmp_path / "long", context_tokens=4096)
    live = serve_echo(name="n" * 8000, bundle=bundle)  # 8 kB a token: what is in the way fills up
    question = {"prompt": "z" * 1000, "stream": True}
    with live.connect("/v1/completions", question, receive_buffer_bytes=4096) as slow:
        wait_until(lambda: live.model.engine.stats().num_finished == 1)
        # The engine is done; the server is not, because this client has not read a byte.
        assert live.get("/health").json()["num_requests_in_flight"] == 1
        slow.head()
        chunks, ended_cleanly = slow.chunks()
    assert ended_cleanly
    timings = last_event(b"".join(chunks))
    assert timings["blocked_ms"] > 0
    assert timings["blocked_ms"] + timings["detokenise_ms"] <= timings["total_ms"] + 0.002
    assert timings["ttft_ms"] + timings["decode_ms"] < timings["total_ms"], "it waited longer"
    wait_until(lambda: "finish=stop" in caplog.text)
    assert "blocked_ms=" in caplog.text


def test_the_log_line_uses_the_same_names(live, caplog):
    caplog.set_level("INFO", "twostroke.server")
    live.post("/v1/chat/completions", CHAT)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "twostroke.server"]
    facts = dict(fact.split("=") for fact in line.split() if "=" in fact)
    stages = ("template_ms", "tokenise_ms", "queued_ms", "prefill_ms", "other_ms", "ttft_ms")
    for name in (*stages, "decode_ms", "detokenise_ms", "total_ms", "decode_tokens_per_s"):
        assert float(facts[name]) >= 0
    assert 0 <= int(facts["cached_tokens"]) < 24  # others have asked the same
    assert facts["batch_size_mean"] == "1.0"
    assert "None" not in line


def test_what_was_read_before_is_cached_and_the_rest_is_computed(serve_echo):
    live = serve_echo()
    first, second = "x" * 60, "x" * 60 + "y" * 20
    told = [
        timings_of(live, "/generate", {"prompt": text}, stream=True)["prefill"]
        for text in (first, second)
    ]
    assert (told[0]["num_cached_tokens"], told[0]["num_computed_tokens"]) == (0, 60)
    assert told[1]["num_cached_tokens"] > 0
    assert told[1]["num_cached_tokens"] + told[1]["num_computed_tokens"] == 80
    assert told[1]["chunks"][0]["start"] == told[1]["num_cached_tokens"]
