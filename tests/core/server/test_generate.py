import json

import pytest

TEXT = "Grüße 😀, streams!"
NDJSON = "application/x-ndjson"


def test_plain_text_is_the_answer_and_nothing_else(live):
    reply = live.post("/generate", {"prompt": TEXT})
    assert reply.status == 200
    assert reply.body.decode() == f"→{TEXT}"
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert len(reply.headers["X-Request-Id"]) == 32


def test_each_token_is_a_chunk_of_its_own(live):
    with live.connect("/generate", {"prompt": "abcdef"}) as stream:
        assert stream.head().startswith(b"HTTP/1.1 200 OK")
        chunks, ended_cleanly = stream.chunks()
    assert chunks == ["→".encode(), b"a", b"b", b"c", b"d", b"e", b"f"]
    assert ended_cleanly


def test_no_chunk_breaks_a_character(live):
    with live.connect("/generate", {"prompt": TEXT}) as stream:
        stream.head()
        chunks, _ = stream.chunks()
    assert "".join(chunk.decode() for chunk in chunks) == f"→{TEXT}"
    assert all(chunks)


def test_a_chunk_arrives_before_the_last_token_is_made(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.01)
    with live.connect("/generate", {"prompt": "x" * 60}) as stream:
        stream.head()
        assert stream.chunk() == "→".encode()
        stats = live.model.engine.stats()
        assert (stats.num_running, stats.num_finished) == (1, 0)
        chunks, ended_cleanly = stream.chunks()
    assert (b"".join(chunks), ended_cleanly) == (b"x" * 60, True)
    wait_until(lambda: live.model.engine.stats().num_finished == 1)


def test_ndjson_has_a_line_a_token_and_the_facts_at_the_end(live):
    reply = live.post("/generate", {"prompt": "é!", "max_tokens": 9}, Accept=NDJSON)
    assert reply.headers["Content-Type"] == NDJSON
    lines = [json.loads(line) for line in reply.body.decode().splitlines()]
    *tokens, last = lines
    assert [token["index"] for token in tokens] == [0, 1, 2, 3]
    assert [token["text"] for token in tokens] == ["→", "", "é", "!"]
    assert all(set(token) == {"index", "token_id", "text"} for token in tokens)
    assert last["done"] is True
    assert last["finish_reason"] == "stop"
    assert last["num_prompt_tokens"] == 3
    assert last["num_completion_tokens"] == 5, "the end-of-sequence token is counted"
    assert last["model"] == "echo"
    assert last["request_id"] == reply.headers["X-Request-Id"]
    assert {"queued_ms", "tokenise_ms", "prefill_ms", "ttft_ms", "decode_ms"} <= set(
        last["timings"]
    )
    assert last["timings"]["ttft_ms"] >= last["timings"]["prefill_ms"] > 0


def test_the_token_limit_ends_with_length(live):
    reply = live.post("/generate", {"prompt": "abc", "max_tokens": 2}, Accept=NDJSON)
    last = json.loads(reply.body.splitlines()[-1])
    assert (last["finish_reason"], last["num_completion_tokens"]) == ("length", 2)


def test_a_whole_answer_as_text(live):
    reply = live.post("/generate", {"prompt": TEXT, "stream": False})
    assert reply.body.decode() == f"→{TEXT}"
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert int(reply.headers["Content-Length"]) == len(reply.body)


@pytest.mark.parametrize(
    ("body", "accept"),
    [
        ({"prompt": "ab"}, "application/json"),
        ({"prompt": "ab", "stream": False}, "application/json"),
        ({"prompt": "ab", "stream": False}, NDJSON),
    ],
)
def test_a_whole_answer_as_json(live, body, accept):
    reply = live.post("/generate", body, Accept=accept)
    facts = reply.json()
    assert (facts["text"], facts["finish_reason"]) == ("→ab", "stop")
    assert (facts["num_prompt_tokens"], facts["num_completion_tokens"]) == (2, 4)


def test_json_cannot_be_streamed(live):
    reply = live.post("/generate", {"prompt": "a", "stream": True}, Accept="application/json")
    assert reply.status == 400
    assert reply.error()["param"] == "stream"


def test_token_ids_are_a_prompt(live):
    ids = list(live.model.encode("abc"))
    assert live.post("/generate", {"prompt": ids}).body == "→abc".encode()


def test_messages_go_through_the_template(live):
    reply = live.post("/generate", {"messages": [{"role": "user", "content": "yo"}]})
    assert reply.status == 200
    assert "user\nyo" in reply.body.decode()


def test_a_stop_string_cuts_before_itself(live):
    for stream in (True, False):
        reply = live.post("/generate", {"prompt": "abcdef", "stop": "cd", "stream": stream})
        assert reply.body == "→ab".encode()


def test_curls_content_type_is_taken(live):
    form = "application/x-www-form-urlencoded"
    assert live.post("/generate", {"prompt": "a"}, Content_Type=form).status == 200


def test_http_1_0_gets_the_text_without_chunks(live):
    with live.connect("/generate", {"prompt": "abc"}, version="1.0") as stream:
        head = stream.head()
        assert b"chunked" not in head.lower()
        assert stream.rest() == "→abc".encode()


def test_http_1_0_is_closed_after_a_stream_whatever_it_asks_for(live):
    body = {"prompt": "abc"}
    with live.connect("/generate", body, version="1.0", Connection="keep-alive") as stream:
        assert b"keep-alive" not in stream.head().lower()
        assert stream.rest() == "→abc".encode(), "without an end of the connection this waits"


def test_zero_tokens_are_an_empty_answer(live):
    reply = live.post("/generate", {"prompt": "abc", "max_tokens": 0})
    assert (reply.status, reply.body) == (200, b"")
