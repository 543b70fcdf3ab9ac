"""Where an endpoint listens."""

from __future__ import annotations

import asyncio

from aiohttp import web

from twostroke.server.tls import HANDSHAKE_TIMEOUT_S, Tls

_BACKLOG = 1024  # connections that the system holds until they are accepted


class Site(web.BaseSite):
    """A TCP address, plain or encrypted.

    aiohttp's own gives a client a minute for the handshake, in which it is no connection yet that
    could be counted.
    """

    __slots__ = ("_host", "_port", "_tls")

    def __init__(self, runner: web.ServerRunner, host: str, port: int, tls: Tls | None) -> None:
        super().__init__(runner)
        self._host, self._port, self._tls = host, port, tls

    @property
    def name(self) -> str:
        """For aiohttp's own messages."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listens. Raises OSError where the address cannot be had."""
        await super().start()
        server = self._runner.server
        assert server is not None, "a set-up runner has a server"
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            backlog=_BACKLOG,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
        )
