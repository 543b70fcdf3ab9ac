"""A bounded number of connections: idle ones make room, and those that are answered stay."""

import socket
import sys
from contextlib import ExitStack

import pytest

from twostroke.server.open_files import make_room


def opened(stack, live, count, data=b""):
    """So many connections, each of which has sent `data`."""
    made = []
    for _ in range(count):
        connection = stack.enter_context(
            socket.create_connection(("127.0.0.1", live.port), timeout=30)
        )
        connection.sendall(data)
        made.append(connection)
    return made


def is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("data", [b"", b"GET /health HTTP/1.1\r\nHost: local"])
def test_the_longest_idle_connection_makes_room(serve_echo, wait_until, data, caplog):
    live = serve_echo(server={"max_connections": 16})
    with ExitStack() as stack:
        held = opened(stack, live, 16, data)
        for number in range(4):
            opened(stack, live, 1, data)
            wait_until(lambda number=number: is_closed(held[number]))
        assert not any(is_closed(each) for each in held[4:])
        assert live.get("/health").status == 200
        wait_until(lambda: is_closed(held[4]))
    assert caplog.text.count("server.max_connections") == 1


def test_a_connection_that_was_used_lately_stays(serve_echo, wait_until):
    live = serve_echo(server={"max_connections": 16})
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        first, second, *_ = opened(stack, live, 16)
        first.sendall(request)
        assert first.recv(12) == b"HTTP/1.1 200"
        assert live.get("/health").status == 200
        wait_until(lambda: is_closed(second))
        first.setblocking(True)
        first.recv(100_000)
        first.sendall(request)
        assert first.recv(12) == b"HTTP/1.1 200"


def test_running_streams_stay_and_what_is_too_much_is_closed(serve_echo, wait_until):
    live = serve_echo(
        server={"max_connections": 16}, scheduler={"max_queue": 64}, step_delay_s=0.01
    )
    with ExitStack() as stack:
        streams = [
            stack.enter_context(live.connect("/generate", {"prompt": "x" * 150})) for _ in range(16)
        ]
        streams[0].head()
        wait_until(lambda: live.endpoint.num_running == 16)
        (refused,) = opened(stack, live, 1)
        wait_until(lambda: is_closed(refused))
        for stream in streams[1:]:
            stream.head()
        for stream in streams:
            chunks, ended_cleanly = stream.chunks()
            assert (b"".join(chunks), ended_cleanly) == ("→".encode() + b"x" * 150, True)
        assert live.get("/health").status == 200


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of Unix")
def test_the_limit_of_open_files_is_raised_and_told_where_it_is_too_low(caplog):
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert make_room(100) == 100
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        assert not caplog.text
        possible = make_room(before[1] + 1)
        assert 16 <= possible < before[1]
        assert f"room for {possible} connections" in caplog.text
        assert "LimitNOFILE" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
