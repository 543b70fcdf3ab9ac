"""A client that goes away takes its sequence with it; one that stands still holds up nobody."""

import pytest

from twostroke.server import stream as stream_module
from twostroke.testing.bundles import make_echo_bundle

BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PATHS = pytest.mark.parametrize("path", ["/generate", "/v1/completions"])


def stats(live):
    return live.model.engine.stats()


@PATHS
@BOTH_MODES
def test_gone_in_decode(serve_echo, wait_until, path, stream):
    live = serve_echo(step_delay_s=0.01)
    connection = live.connect(path, {"prompt": "x" * 300, "stream": stream})
    wait_until(lambda: stats(live).num_steps > 5)
    before = stats(live).num_steps
    connection.close()
    wait_until(lambda: stats(live).num_running == 0)
    assert stats(live).num_aborted == 1
    assert stats(live).num_steps - before < 100, "300 steps were to come"


@BOTH_MODES
def test_gone_in_prefill(serve_echo, wait_until, stream):
    live = serve_echo(prefill_delay_s_per_token=0.002, scheduler={"prefill_chunk_tokens": 8})
    connection = live.connect("/generate", {"prompt": "x" * 400, "stream": stream})
    wait_until(lambda: stats(live).num_steps >= 2)
    connection.close()
    wait_until(lambda: stats(live).num_aborted == 1)
    assert stats(live).num_steps < 50, "400 tokens are 50 chunks, and no token was decoded"
    assert live.post("/generate", {"prompt": "next"}).body == "→next".encode()


@BOTH_MODES
def test_gone_in_the_queue(serve_echo, wait_until, stream):
    live = serve_echo(step_delay_s=0.005, scheduler={"max_rows": 1})
    with live.connect("/generate", {"prompt": "y" * 100}) as first:
        first.head()
        waiting = live.connect("/generate", {"prompt": "never", "stream": stream})
        wait_until(lambda: stats(live).num_waiting == 1)
        waiting.close()
        wait_until(lambda: stats(live).num_waiting == 0)
        chunks, ended_cleanly = first.chunks()
    assert ended_cleanly
    assert b"".join(chunks) == "→".encode() + b"y" * 100, "nobody else notices"
    assert stats(live).num_aborted == 1


def test_a_client_that_reads_nothing_is_let_go(serve_echo, wait_until, monkeypatch, tmp_path):
    monkeypatch.setattr(stream_module, "WRITE_TIMEOUT_S", 0.2)
    bundle = make_echo_bundle(tmp_path / "long", context_tokens=8192)
    live = serve_echo(name="n" * 8000, bundle=bundle)  # 8 kB a token: what is in the way fills up
    question = {"prompt": "z" * 3000, "stream": True}
    stalled = live.connect("/v1/completions", question, receive_buffer_bytes=4096)
    wait_until(lambda: stats(live).num_running == 1)
    answer = live.post("/generate", {"prompt": "others"})
    assert answer.body == "→others".encode(), "a stalled client holds up nobody"
    wait_until(lambda: live.get("/health").json()["num_requests_in_flight"] == 0)
    stalled.head()
    chunks, ended_cleanly = stalled.chunks()
    assert not ended_cleanly
    assert b"[DONE]" not in b"".join(chunks)
    stalled.close()


@pytest.mark.parametrize(
    ("path", "accept", "last"),
    [
        ("/generate", "*/*", b"c"),  # the text made so far, and no word of the fault
        ("/generate", "application/x-ndjson", b'"type":"server_error"'),
        ("/v1/completions", "*/*", b'"type":"server_error"'),
        ("/v1/chat/completions", "*/*", b'"type":"server_error"'),
    ],
)
def test_a_fault_in_mid_stream_cuts_the_connection(serve_echo, path, accept, last):
    live = serve_echo(fail_decode_runs=[3])
    prompt = (
        {"messages": [{"role": "user", "content": "abcdef"}]}
        if "chat" in path
        else {"prompt": "abcdef"}
    )
    with live.connect(path, {**prompt, "stream": True}, Accept=accept) as stream:
        assert b" 200 " in stream.head()
        chunks, ended_cleanly = stream.chunks()
    assert not ended_cleanly
    assert b"[DONE]" not in chunks[-1]
    assert last in chunks[-1]
    assert live.post("/generate", {"prompt": "next"}).status == 200


def test_a_fault_before_the_first_token_is_a_500(serve_echo):
    for path in ("/generate", "/v1/completions"):
        for stream in (True, False):
            live = serve_echo(fail_prefill_runs=[0])
            reply = live.post(path, {"prompt": "abc", "stream": stream})
            assert reply.status == 500
            assert reply.error()["code"] == "engine_error"


def test_a_whole_answer_that_fails_is_a_500(serve_echo):
    live = serve_echo(fail_decode_runs=[3])
    reply = live.post("/generate", {"prompt": "abcdef", "stream": False})
    assert (reply.status, reply.error()["code"]) == (500, "engine_error")


def test_an_http_1_0_client_gets_a_reset_after_a_fault(serve_echo):
    live = serve_echo(fail_decode_runs=[3])
    with (
        live.connect("/generate", {"prompt": "abcdef"}, version="1.0") as stream,
        pytest.raises(ConnectionResetError),
    ):
        stream.head()
        stream.rest()
