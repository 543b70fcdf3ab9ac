"""Who may ask: API keys, and without keys a guard against web pages.

Without keys, a web page in the operator's browser could post to a server on loopback, either
across sites (a form or a `fetch` needs no permission to *send*) or by rebinding a DNS name of its
own to 127.0.0.1. So without keys a request whose `Origin` is another site is refused, and on a
loopback address one whose `Host` is neither a loopback name nor `server.host`. With keys neither
is needed: a strange page does not know the key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from twostroke.config.schema import ServerConfig
from twostroke.errors import AuthError, RequestError


class Guard:
    """Checks requests against one server's configuration."""

    def __init__(
        self, config: ServerConfig, key_headers: Iterable[str] = ("Authorization",)
    ) -> None:
        """A key is read from `Authorization`, or as it is from any other of `key_headers`."""
        self._plain_headers = tuple(sorted(set(key_headers) - {"Authorization"}))
        self._host = config.host.lower()
        self._digests = tuple(_digest(key) for key in config.keys)

    def check(self, request: web.Request) -> str:
        """Lets a request pass, or says why not. Answers whose it is: a name for its key.

        The name is a digest, "" where no keys are configured.

        Raises:
            AuthError: keys are configured and the request has none of them.
            RequestError: 403, a request without keys that another site's page may have sent.
        """
        if self._digests:
            return self._check_key(request).hex()
        self._check_site(request.headers.get("Host"), request.headers.get("Origin"))
        return ""

    def _check_key(self, request: web.Request) -> bytes:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        found = {"Authorization": key.strip()} if scheme.lower() == "bearer" else {}
        found |= {name: request.headers.get(name, "").strip() for name in self._plain_headers}
        given = {name: _digest(key) for name, key in found.items() if key}
        if not given:
            raise AuthError("This server wants a key: send the header `Authorization: Bearer KEY`.")
        for digest in given.values():
            # Every digest is compared, so that the time taken tells nothing of which came close.
            if sum(hmac.compare_digest(digest, known) for known in self._digests):
                return digest
        raise AuthError(f"The key in the {' or '.join(given)} header is not known to this server.")

    def _check_site(self, host: str | None, origin: str | None) -> None:
        name = _host_name(f"//{host}") if host else None
        if host and is_loopback(self._host) and name != self._host and not is_loopback(name):
            raise RequestError(
                f"The Host header {host[:80]!r} does not name this machine. Ask by 127.0.0.1 or "
                "localhost; behind a proxy, configure server.keys.",
                status=403,
                code="host_not_allowed",
            )
        if not origin:
            return
        same_site = urlsplit_netloc(origin) == (host or "").lower()
        if not same_site and not is_loopback(_host_name(origin)):
            raise RequestError(
                f"Pages of {origin[:80]!r} may not use this server without a key; configure "
                "server.keys.",
                status=403,
                code="origin_not_allowed",
            )


def is_loopback(name: str | None) -> bool:
    """True for `localhost`, names below it, and loopback addresses."""
    if not name:
        return False
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def urlsplit_netloc(url: str) -> str | None:
    """Host and port of a URL in lower case; None where it cannot be read."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _digest(key: str) -> bytes:
    """Digests have one length, so that comparing them tells nothing of the key's."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
