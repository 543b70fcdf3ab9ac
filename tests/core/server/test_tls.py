"""HTTPS: certificates from files, exchanged while connections are open."""

import http.client
import socket
import ssl
import sys
from contextlib import suppress

import pytest
import trustme

from twostroke.config.schema import ServerConfig
from twostroke.errors import ConfigError
from twostroke.server import site, watch
from twostroke.server.tls import Tls


class Files:
    """A certificate for 127.0.0.1 and its key, and who signed it."""

    def __init__(self, folder):
        self.ca = trustme.CA()
        self.certificate, self.key = folder / "certificate.pem", folder / "key.pem"
        self.issue()

    def issue(self):
        issued = self.ca.issue_cert("127.0.0.1")
        # First the key: for a moment the two are no pair.
        issued.private_key_pem.write_to_path(self.key)
        self.certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        self.serial = serial_of(issued.cert_chain_pems[0].bytes())

    @property
    def tls(self):
        return {"certificate": str(self.certificate), "key": str(self.key)}

    def client(self):
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


def serial_of(pem):
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).serial_number


def shown_serial(connection):
    return int(connection.sock.getpeercert()["serialNumber"], 16)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def connect(live, files):
    connection = http.client.HTTPSConnection(
        "127.0.0.1", live.port, context=files.client(), timeout=30
    )
    connection.connect()
    return connection


def ask(connection):
    connection.request("POST", "/generate", '{"prompt": "hi", "stream": false}')
    return connection.getresponse().read().decode()


def test_requests_are_answered_encrypted(files, serve_echo):
    live = serve_echo(server={"tls": files.tls})
    connection = connect(live, files)
    assert ask(connection) == "→hi"
    assert connection.sock.selected_alpn_protocol() == "http/1.1"
    assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
    assert live.endpoint.url == f"https://127.0.0.1:{live.port}"
    connection.close()


def test_a_strange_client_trusts_nothing_and_old_versions_are_refused(files, serve_echo):
    live = serve_echo(server={"tls": files.tls})
    stranger = http.client.HTTPSConnection("127.0.0.1", live.port, timeout=30)
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.connect()
    old = files.client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    connection = http.client.HTTPSConnection("127.0.0.1", live.port, context=old, timeout=30)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connection.connect()


def test_plain_bytes_end_the_connection_and_nothing_else(files, serve_echo):
    live = serve_echo(server={"tls": files.tls})
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live.connect_raw(request) as plain, suppress(ConnectionError):
        assert b"HTTP/1.1 200" not in plain.rest()
    connection = connect(live, files)
    assert ask(connection) == "→hi"
    connection.close()


def test_a_handshake_that_does_not_come_ends_the_connection(files, serve_echo, monkeypatch):
    monkeypatch.setattr(site, "HANDSHAKE_TIMEOUT_S", 0.2)
    live = serve_echo(server={"tls": files.tls})
    address = ("127.0.0.1", live.port)
    with socket.create_connection(address, timeout=30) as silent, suppress(ConnectionError):
        assert silent.recv(100) == b""


def test_a_new_certificate_is_shown_and_open_connections_go_on(
    files, serve_echo, monkeypatch, wait_until
):
    monkeypatch.setattr(watch, "PERIOD_S", 0.02)
    live = serve_echo(server={"tls": files.tls})
    old = connect(live, files)
    first = shown_serial(old)
    assert first == files.serial
    files.issue()
    assert files.serial != first

    def is_new():
        new = connect(live, files)
        try:
            return shown_serial(new) == files.serial and ask(new) == "→hi"
        finally:
            new.close()

    wait_until(is_new)
    assert ask(old) == "→hi"
    old.close()


def test_a_certificate_that_breaks_is_told_and_the_old_one_is_kept(
    files, serve_echo, monkeypatch, wait_until, caplog
):
    monkeypatch.setattr(watch, "PERIOD_S", 0.02)
    live = serve_echo(server={"tls": files.tls})
    files.certificate.write_text("nonsense")
    wait_until(lambda: "holds no certificate in PEM" in caplog.text)
    connection = connect(live, files)
    assert ask(connection) == "→hi"
    connection.close()


def test_clients_show_certificates_where_a_ca_is_named(files, serve_echo, tmp_path):
    files.ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    live = serve_echo(server={"tls": {**files.tls, "ca": str(tmp_path / "ca.pem")}})
    with pytest.raises((ssl.SSLError, ConnectionError)):
        # In TLS 1.3 the refusal arrives with the first answer.
        connection = connect(live, files)
        ask(connection)
    context = files.client()
    files.ca.issue_cert("client.example").configure_cert(context)
    connection = http.client.HTTPSConnection("127.0.0.1", live.port, context=context, timeout=30)
    assert ask(connection) == "→hi"
    connection.close()


def fault(**named):
    with pytest.raises(ConfigError) as caught:
        Tls(ServerConfig(tls=named).tls).check()
    return str(caught.value)


def test_wrong_files_are_named(files, tmp_path):
    missing, nonsense = tmp_path / "missing.pem", tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for what, named in (("certificate", "certificate"), ("key", "private key")):
        assert f"server.tls.{what}: {missing}: no such file" in fault(
            **{**files.tls, what: str(missing)}
        )
        told = fault(**{**files.tls, what: str(nonsense)})
        assert f"server.tls.{what}: {nonsense}: holds no {named} in PEM" in told
    assert f"server.tls.ca: {missing}: no such file" in fault(**files.tls, ca=str(missing))
    told = fault(**files.tls, ca=str(nonsense))
    assert f"server.tls.ca: {nonsense}: holds no certificates" in told


def test_a_key_of_another_certificate_and_a_locked_one_are_named(files, tmp_path):
    from cryptography.hazmat.primitives import serialization as form

    other = tmp_path / "other.pem"
    files.ca.issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    told = fault(**{**files.tls, "key": str(other)})
    assert f"the key {other} does not belong to the certificate {files.certificate}" in told
    key = form.load_pem_private_key(other.read_bytes(), None)
    lock = form.BestAvailableEncryption(b"password")
    locked = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)
    other.write_bytes(locked)
    told = fault(**{**files.tls, "key": str(other)})
    assert f"server.tls.key: {other}: is locked with a password" in told


@pytest.mark.skipif(sys.platform == "win32", reason="modes are those of Unix")
def test_a_server_does_not_start_without_its_certificate(files, serve_echo):
    files.certificate.unlink()
    tls = Tls(ServerConfig(tls=files.tls).tls)
    with pytest.raises(ConfigError, match=r"certificate\.pem: no such file"):
        tls.check()
