"""One listening endpoint: bind, drain, close."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from aiohttp import web

from twostroke.config.schema import ServerConfig
from twostroke.errors import ConfigError
from twostroke.server.all_surfaces import BUILT_IN
from twostroke.server.app import build_app
from twostroke.server.connections import serve_app
from twostroke.server.keys import IN_FLIGHT
from twostroke.server.models import Models
from twostroke.server.surface import Surface
from twostroke.server.traces import Traces

_CLOSE_TIMEOUT_S = 0.5  # for handlers that were cut off to notice it


class Endpoint:
    """Owns the sockets and the application's life. Used in one event loop."""

    def __init__(
        self, models: Models, config: ServerConfig, surfaces: Sequence[Surface] = BUILT_IN
    ) -> None:
        """Raises InstallError where `server.traces` is on and its packages are missing."""
        self._config = config
        self._traces = Traces() if config.traces else None
        self._app = build_app(models, config, self._traces, surfaces)
        self._in_flight = self._app[IN_FLIGHT]
        self._app_runner = web.AppRunner(self._app)
        self._site_runner: web.ServerRunner | None = None
        self.port = config.port

    async def listen(self) -> None:
        """Binds the address; from then on requests are answered. Sets `port`.

        Raises:
            ConfigError: the address is taken or is not this machine's.
        """
        await self._app_runner.setup()
        server = self._app_runner.server
        assert server is not None, "a set-up runner has a server"
        self._site_runner = web.ServerRunner(serve_app(server), shutdown_timeout=_CLOSE_TIMEOUT_S)
        await self._site_runner.setup()
        host, port = self._config.host, self._config.port
        try:
            await web.TCPSite(self._site_runner, host, port).start()
        except OSError as error:
            await self.close()
            raise ConfigError(
                [
                    f"Cannot listen on {host} port {port}: {_reason(error)}. "
                    "Choose another with --set server.port=… or server.host."
                ]
            ) from None
        self.port = self._site_runner.addresses[0][1]

    def take_over(self, config: ServerConfig) -> None:
        """Lets what may change while serving be as `config` says: keys and limits."""
        self._config = config
        self._app[GUARD].take_over(config)
        self._app._client_max_size = config.max_body  # aiohttp asks for it once a request

    @property
    def url(self) -> str:
        """E.g. `http://127.0.0.1:8080`."""
        host = self._config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def num_running(self) -> int:
        """Requests that are being answered right now."""
        return self._in_flight.count

    @property
    def shutdown_timeout_s(self) -> float:
        """How long `drain` waits."""
        return self._config.shutdown_timeout_s

    async def drain(self, give_up: asyncio.Event) -> None:
        """Refuses new requests and waits for the running ones.

        Returns when all have ended, after `shutdown_timeout_s`, or when `give_up` is set.
        """
        self._in_flight.refuse_new()
        waits = [
            asyncio.ensure_future(self._in_flight.wait_idle()),
            asyncio.ensure_future(give_up.wait()),
        ]
        await asyncio.wait(
            waits,
            timeout=self._config.shutdown_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        """Closes the sockets; streams that still run are cut off. Idempotent."""
        if self._site_runner is not None:
            await self._site_runner.cleanup()
        await self._app_runner.cleanup()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)


def _reason(error: OSError) -> str:
    """asyncio writes the address into `strerror`; a name that can't be found has a code below 0."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
