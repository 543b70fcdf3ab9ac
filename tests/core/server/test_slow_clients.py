"""Clients that take their time: over headers, over the body, between requests."""

import json

import pytest

from twostroke.server import body, connections


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /hea", b"POST /generate HTTP/1.1\r\nHost: local"],
    ids=["nothing", "line", "header"],
)
def test_headers_that_do_not_arrive_end_the_connection(monkeypatch, serve_echo, data):
    monkeypatch.setattr(connections, "KEEPALIVE_TIMEOUT_S", 0.2)
    live = serve_echo()
    with live.connect_raw(data) as connection:
        assert connection.rest() == b""


def test_an_idle_connection_is_closed_after_its_request(monkeypatch, serve_echo):
    monkeypatch.setattr(connections, "KEEPALIVE_TIMEOUT_S", 0.2)
    live = serve_echo()
    with live.connect("/generate", {"prompt": "hi", "stream": False}) as connection:
        assert b" 200 " in connection.head()
        assert connection.rest() == "→hi".encode()


def test_a_stream_may_last_longer_than_an_idle_connection(monkeypatch, serve_echo):
    monkeypatch.setattr(connections, "KEEPALIVE_TIMEOUT_S", 0.05)
    live = serve_echo(step_delay_s=0.01)
    with live.connect("/generate", {"prompt": "x" * 40}) as connection:
        connection.head()
        chunks, ended_cleanly = connection.chunks()
    assert (len(chunks), ended_cleanly) == (41, True)


def test_a_body_that_does_not_arrive_is_a_408(monkeypatch, serve_echo):
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.2)
    live = serve_echo()
    request = b'POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt'
    with live.connect_raw(request) as connection:
        assert b" 408 " in connection.head()


def test_requests_on_one_connection_are_answered_in_turn(live):
    question = json.dumps({"prompt": "a"}).encode()
    request = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
    one = request % (len(question), question)
    with live.connect_raw(one * 3) as connection:
        for _ in range(3):
            assert b" 200 " in connection.head()
            assert connection.chunks() == (["→".encode(), b"a"], True)
