"""Which servers are open to other machines, and what is said of it."""

import pytest

from twostroke.config.exposure import is_own_address, open_doors
from twostroke.config.schema import ServerConfig
from twostroke.config.server import TlsConfig

TLS = TlsConfig(certificate="c.pem", key="k.pem")
WITH_CLIENTS = TlsConfig(certificate="c.pem", key="k.pem", ca="ca.pem")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "LOCALHOST"])
def test_on_this_machine_nothing_is_open(host):
    assert is_own_address(host)
    assert open_doors(ServerConfig(host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "models.example", "fe80::1"])
def test_elsewhere_keys_and_tls_are_wanted(host):
    assert not is_own_address(host)
    no_keys, no_tls = open_doors(ServerConfig(host=host))
    for door in (no_keys, no_tls):
        assert f"server.host is {host}" in door
        assert "server.host: 127.0.0.1" in door
    for way_out in ("server.keys", "server.key_file", "server.tls.ca", "server.insecure: [keys]"):
        assert way_out in no_keys
    assert "server.insecure: [tls]" in no_tls


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"keys": ("k",)}, ["[tls]"]),
        ({"key_file": "keys.json"}, ["[tls]"]),
        ({"keys": ("k",), "insecure": ("tls",)}, []),
        ({"insecure": ("keys",)}, ["[tls]"]),
        ({"insecure": ("tls",)}, ["[keys]"]),
        ({"insecure": ("tls", "keys")}, []),
        ({"tls": TLS}, ["[keys]"]),
        ({"tls": TLS, "keys": ("k",)}, []),
        ({"tls": WITH_CLIENTS}, []),
    ],
)
def test_each_way_out_closes_one_door(settings, left):
    doors = open_doors(ServerConfig(host="0.0.0.0", **settings))
    assert [door.partition("server.insecure: ")[2].split()[0] for door in doors] == left
