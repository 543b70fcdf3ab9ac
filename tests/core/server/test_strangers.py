"""Pages of other sites and rebound names, without keys: refused on every route but /health."""

import itertools
import re
import socket

import pytest

from twostroke.server.keys import HEALTH_PATH, PROBE_PATHS

BODY = {"prompt": "hi", "model": "echo", "messages": [{"role": "user", "content": "hi"}]}


def asked(live):
    """Each route as a method and a path that can be asked for."""
    for route in live.endpoint._app.router.routes():
        path = re.sub(r"\{[^{}]*(\{[^{}]*\}[^{}]*)*\}", "echo", route.resource.canonical)
        if path not in PROBE_PATHS:
            yield route.method, path


FOREIGN = {
    "a rebound name": {"Host": "evil.example"},
    "a rebound name and its port": {
        "Host": "evil.example:8080",
        "Origin": "http://evil.example:8080",
    },
    "a name that begins like this machine's": {"Host": "127.0.0.1.evil.example"},
    "another machine by IPv6": {"Host": "[2001:db8::1]:8080"},
    "an IPv4 address in IPv6": {"Host": "[::ffff:10.0.0.1]:8080"},
    "another site": {"Origin": "https://evil.example"},
    "a file or a sandboxed frame": {"Origin": "null"},
    "a name with this machine's before an @": {"Origin": "http://localhost@evil.example"},
    "an extension": {"Origin": "chrome-extension://abcdefgh"},
    "an image of another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_every_route_refuses(live, headers):
    routes = list(asked(live))
    assert {"GET", "HEAD", "POST"} <= {method for method, _ in routes}
    answers = {}
    for method, path in routes:
        reply = live.ask(method, path, BODY if method == "POST" else None, headers)
        answers[method, path] = reply.status
    assert set(answers.values()) == {403}, answers


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1/nowhere", "/metrics/../v1/models"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT", "DELETE"])
def test_what_is_no_route_refuses_too(live, method, path):
    assert live.ask(method, path, None, {"Origin": "https://evil.example"}).status == 403
    assert live.ask(method, path, None, {"Host": "evil.example"}).status == 403


OWN = {
    "by address": {"Host": "127.0.0.1:1"},
    "by IPv6": {"Host": "[::1]:8080"},
    "by name": {"Host": "LOCALHOST:8080"},
    "by name with a dot": {"Host": "localhost.:8080"},
    "an own page": {"Host": "localhost:8080", "Origin": "http://localhost:8080"},
    "another program's page": {"Host": "127.0.0.1:8080", "Origin": "http://localhost:3000"},
    "a page by IPv6": {"Host": "127.0.0.1:8080", "Origin": "http://[::1]:3000"},
    "a link from another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "typed into the browser": {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    "an own page's fetch": {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
}


@pytest.mark.parametrize("headers", OWN.values(), ids=OWN)
def test_this_machines_pages_and_programs_are_answered(live, headers):
    for method, path in itertools.product(("GET", "HEAD"), ("/v1/models", "/metrics")):
        assert live.ask(method, path, None, headers).status == 200
    assert live.ask("POST", "/generate", {"prompt": "hi"}, headers).status == 200


@pytest.mark.parametrize(
    "host", [b"Host: localhost\r\nHost: evil.example", b"Host: evil.example\r\nHost: localhost"]
)
def test_two_hosts_are_no_way_in(live, host):
    with live.connect_raw(b"GET /v1/models HTTP/1.1\r\n%s\r\n\r\n" % host) as connection:
        assert connection.head().split()[1] in (b"400", b"403")


def test_a_whole_url_in_the_request_line_does_not_hide_the_host(live):
    request = b"GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    with live.connect_raw(request) as connection:
        assert connection.head().split()[1] in (b"400", b"403")


def test_health_answers_whatever_the_host(live):
    for headers in FOREIGN.values():
        assert live.ask("GET", HEALTH_PATH, None, headers).status == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_on_ipv6_loopback_the_same_holds(serve_echo):
    live = serve_echo(server={"host": "::1"})
    for host, status in (("[::1]", 200), ("localhost", 200), ("evil.example", 403)):
        with socket.create_connection(("::1", live.port), timeout=30) as connection:
            connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.recv(12) == f"HTTP/1.1 {status}".encode()


def test_with_keys_only_pages_are_open_beside_health(serve_echo):
    live = serve_echo(server={"keys": ["key"]})
    for method, path in asked(live):
        status = live.ask(method, path, BODY if method == "POST" else None).status
        if status != 401:
            assert method in ("GET", "HEAD"), path
            assert not path.startswith(("/v1", "/api", "/models", "/metrics", "/slots")), path
