"""Where an endpoint listens."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from aiohttp import web

from twostroke.server.tls import HANDSHAKE_TIMEOUT_S, Tls

_BACKLOG = 1024  # connections that the system holds until they are accepted
# asyncio accepts that many at a time, before any of them counts against `server.max_connections`:
# the files which the process may open have to suffice for some such turns.
_ACCEPTED_AT_ONCE = 32


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
        listening = self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            backlog=_ACCEPTED_AT_ONCE,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
        )
        for each in listening.sockets:
            _lengthen_backlog(each.fileno())


def _lengthen_backlog(number: int) -> None:
    """Has the system hold more connections than asyncio, for which both are one number, accepts."""
    if sys.platform != "win32":
        with socket.socket(fileno=os.dup(number)) as same:
            same.listen(_BACKLOG)
