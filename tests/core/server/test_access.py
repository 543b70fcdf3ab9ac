import pytest
from aiohttp.test_utils import make_mocked_request

from twostroke.config.schema import ServerConfig
from twostroke.errors import RequestError
from twostroke.server.access import Guard, is_loopback

QUESTION = {"prompt": "hi"}


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST.".lower(), "app.localhost", "127.0.0.1", "127.8.9.1", "::1"]
)
def test_names_of_this_machine(name):
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name",
    [None, "", "localhost.evil.example", "notlocalhost", "10.0.0.1", "127.0.0.1.evil.example"],
)
def test_names_of_other_machines(name):
    assert not is_loopback(name)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::2]:80", "[broken", "a b"],
)
def test_a_rebound_name_is_refused(live, host):
    reply = live.post("/generate", QUESTION, Host=host)
    assert reply.status in (400, 403)
    assert reply.error()["code"] in ("host_not_allowed", "malformed_request")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "my.localhost:80"])
def test_a_loopback_name_is_taken(live, host):
    assert live.post("/generate", QUESTION, Host=host).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://10.0.0.1:3000"])
def test_another_sites_page_is_refused(live, origin):
    reply = live.post("/generate", QUESTION, Origin=origin)
    assert reply.status == 403
    assert reply.error()["code"] == "origin_not_allowed"


def test_a_local_page_is_taken(live):
    assert live.post("/generate", QUESTION, Origin="http://localhost:3000").status == 200


def test_health_is_open_to_orchestrators(live):
    assert live.get("/health", Host="pod-1.cluster").status == 200


def test_without_a_key_a_server_with_keys_answers_401(serve_echo):
    live = serve_echo(server={"keys": ["first", "schlüssel"]})
    for headers in (
        {},
        {"Authorization": "first"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer firs"},
        {"Authorization": "Basic first"},
    ):
        for path in ("/generate", "/v1/chat/completions", "/nowhere"):
            reply = live.post(path, QUESTION, **headers)
            assert reply.status == 401
            assert reply.error()["code"] == "invalid_api_key"
            assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert live.get("/health").status == 200


def test_any_of_the_keys_opens(serve_echo):
    live = serve_echo(server={"keys": ["first", "schlüssel"]})
    for key in ("first", "schlüssel"):
        headers = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
        assert live.ask("POST", "/generate", QUESTION, headers).body == "→hi".encode()
    reply = live.post(
        "/generate", QUESTION, Authorization="bearer first", Origin="https://app.example"
    )
    assert reply.status == 200, "with a key the page may be anywhere"


def check(host, **headers):
    Guard(ServerConfig(host=host)).check(make_mocked_request("POST", "/generate", headers))


@pytest.mark.parametrize("bound", ["0.0.0.0", "192.168.1.5", "::"])
def test_on_a_network_any_name_may_lead_here_but_pages_of_others_may_not_ask(bound):
    check(bound, Host="models.example:8080")
    check(bound, Host="models.example:8080", Origin="http://models.example:8080")
    check(bound, Host="models.example:8080", Origin="http://MODELS.example:8080")
    for origin in ("http://evil.example", "http://models.example:9", "null", "http://[broken"):
        with pytest.raises(RequestError) as caught:
            check(bound, Host="models.example:8080", Origin=origin)
        assert caught.value.code == "origin_not_allowed"


def test_the_configured_name_of_a_loopback_address_is_taken():
    check("localhost", Host="localhost:8080")
    check("box.localhost", Host="BOX.localhost")
    with pytest.raises(RequestError):
        check("localhost", Host="box.example")


def test_a_client_that_sends_no_host_is_no_browser():
    check("127.0.0.1")
