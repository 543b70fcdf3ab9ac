"""HTTPS: a context from files, and the same context when they change.

A context is never exchanged: connections that are open keep what they began with, new ones get the
certificate that was read last.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from twostroke.config.server import TlsConfig
from twostroke.errors import ConfigError
from twostroke.server.watch import Watch

HANDSHAKE_TIMEOUT_S = 10.0


class Tls:
    """Owns the context of one endpoint."""

    def __init__(self, config: TlsConfig) -> None:
        """`config` names at least a certificate and its key; they are read by `watch.start`."""
        assert config.certificate is not None, "without a certificate there is no TLS"
        assert config.key is not None, "the schema wants both"
        self._certificate, self._key, self._ca = config.certificate, config.key, config.ca
        self.context = _new_context()
        paths = [Path(each) for each in (config.certificate, config.key, config.ca) if each]
        self.watch: Watch[None] = Watch("server.tls", paths, read=self.check, take=self._take)

    def check(self) -> None:
        """Reads the files, and forgets them.

        Raises:
            ConfigError: they are of no use, and why.
        """
        self._load(_new_context())

    def _take(self, _: None) -> None:
        self._load(self.context)

    def _load(self, context: ssl.SSLContext) -> None:
        """Loads the files into a context. Mutates it.

        Certificates of `ca` are added to those that it has; to drop one the server must restart.

        Raises:
            ConfigError: a file is missing, is no PEM, or certificate and key are no pair.
        """
        for what, name in (("certificate", self._certificate), ("key", self._key)):
            _check_readable(f"server.tls.{what}", name)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError([self._fault(error)]) from None
        if self._ca is not None:
            _check_readable("server.tls.ca", self._ca)
            try:
                context.load_verify_locations(self._ca)
            except (ssl.SSLError, OSError) as error:
                raise ConfigError(
                    [f"server.tls.ca: {self._ca}: holds no certificates in PEM ({_reason(error)})"]
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED

    def _fault(self, error: Exception) -> str:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            return (
                f"server.tls: the key {self._key} does not belong to the certificate "
                f"{self._certificate}; the file must begin with the certificate of that key"
            )
        if isinstance(error, _PasswordError):
            return f"server.tls.key: {self._key}: is locked with a password; take it off"
        for what, held, name in (
            ("certificate", "certificate", self._certificate),
            ("key", "private key", self._key),
        ):
            if f"{held.upper()}-----" not in Path(name).read_text("ascii", errors="replace"):
                return f"server.tls.{what}: {name}: holds no {held} in PEM"
        return f"server.tls: {self._certificate} and {self._key} cannot be used: {_reason(error)}"


class _PasswordError(ValueError):
    pass


def _no_password() -> str:
    """Called where a key is locked; OpenSSL would ask on the terminal otherwise."""
    raise _PasswordError("the key has a password")


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _check_readable(what: str, name: str) -> None:
    try:
        with Path(name).open("rb"):
            return
    except OSError as error:
        raise ConfigError([f"{what}: {name}: {(error.strerror or str(error)).lower()}"]) from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
