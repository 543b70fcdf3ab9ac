"""Who may ask: API keys, and without keys a guard against web pages.

Without keys, a web page in the operator's browser could post to a server on loopback, either
across sites (a form or a `fetch` needs no permission to *send*) or by rebinding a DNS name of its
own to 127.0.0.1. So without keys a request whose `Origin` is another site is refused, and on a
loopback address one whose `Host` is neither a loopback name nor `server.host`; so is what browsers
mark as embedded by another site. With keys none of it is needed: a strange page knows no key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from twostroke.api_keys import NOBODY, Caller, KnownKeys
from twostroke.config.schema import ServerConfig
from twostroke.errors import AuthError, RequestError
from twostroke.server.cors import Cors


class Guard:
    """Checks requests against one server's configuration and the keys that it knows."""

    def __init__(
        self,
        config: ServerConfig,
        known_keys: KnownKeys | None = None,
        key_headers: Iterable[str] = ("Authorization",),
    ) -> None:
        """A key is read from `Authorization`, or as it is from any other of `key_headers`.

        `known_keys` None: those of `config.keys` and no others.
        """
        self._plain_headers = tuple(sorted(set(key_headers) - {"Authorization"}))
        self._host = config.host.lower()
        self._known_keys = KnownKeys(config.keys) if known_keys is None else known_keys
        self._wants_key = config.has_keys
        self.cors = Cors(config.cors_origins)

    @property
    def wants_key(self) -> bool:
        """Whether requests need a key."""
        return self._wants_key

    def take_over(self, config: ServerConfig) -> None:
        """Asks for keys if `config` has some: its own instead of those before.

        Which pages may read answers changes too.
        """
        self._known_keys.configure(config.keys)
        self._wants_key = config.has_keys
        self.cors = Cors(config.cors_origins)

    def check(self, request: web.Request, *, is_open: bool = False) -> Caller:
        """Lets a request pass, or says why not. Answers who asks.

        An open route wants no key, but where there are none no strange page either.

        Raises:
            AuthError: keys are configured and the request has none of them.
            RequestError: 403, a request without keys that another site's page may have sent.
        """
        if self._wants_key:
            return NOBODY if is_open else self._find_caller(request)
        self._check_site(request.headers.get("Host"), request.headers.get("Origin"))
        _check_fetch(request)
        return NOBODY

    def _find_caller(self, request: web.Request) -> Caller:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        sent = [("Authorization", key)] if scheme.lower() == "bearer" else []
        sent += [(name, request.headers.get(name, "")) for name in self._plain_headers]
        given = {name: key.strip() for name, key in sent if key.strip()}
        if not given:
            raise AuthError("This server wants a key: send the header `Authorization: Bearer KEY`.")
        for secret in given.values():
            try:
                return self._known_keys.find(secret)
            except AuthError as error:
                if error.code != AuthError.code:  # known, but expired
                    raise
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
        if not origin or self.cors.allows(origin):
            return
        same_site = urlsplit_netloc(origin) == (host or "").lower()
        if not same_site and not is_loopback(_host_name(origin)):
            raise RequestError(
                f"Pages of {origin[:80]!r} may not use this server without a key; configure "
                "server.keys, or server.cors_origins.",
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


def _check_fetch(request: web.Request) -> None:
    """Refuses what browsers say that another site's page embeds: images, scripts, `no-cors` reads.

    They send no `Origin` with it. A link that somebody follows is no such thing, and of a page on
    this machine the browser only knows that it is another site where it has another name.
    """
    if request.headers.get("Origin") or request.headers.get("Sec-Fetch-Mode") == "navigate":
        return
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise RequestError(
            "Pages of other sites may not use this server without a key; configure server.keys.",
            status=403,
            code="origin_not_allowed",
        )
