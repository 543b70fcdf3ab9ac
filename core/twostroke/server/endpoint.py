"""One listening endpoint: bind, drain, close."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from twostroke.api_keys import KeyFile, KnownKeys
from twostroke.config.schema import ServerConfig
from twostroke.errors import ConfigError
from twostroke.server.all_surfaces import BUILT_IN
from twostroke.server.app import GUARD, build_app
from twostroke.server.connections import serve_app
from twostroke.server.keys import IN_FLIGHT
from twostroke.server.models import Models
from twostroke.server.open_files import make_room
from twostroke.server.site import Site
from twostroke.server.surface import Surface
from twostroke.server.tls import Tls
from twostroke.server.traces import Traces
from twostroke.server.watch import Watch

_CLOSE_TIMEOUT_S = 0.5  # for handlers that were cut off to notice it


class Endpoint:
    """Owns the sockets and the application's life. Used in one event loop."""

    def __init__(
        self, models: Models, config: ServerConfig, surfaces: Sequence[Surface] = BUILT_IN
    ) -> None:
        """Raises InstallError where `server.traces` is on and its packages are missing."""
        self._config = config
        self._traces = Traces() if config.traces else None
        known_keys = KnownKeys(config.keys)
        self._tls = Tls(config.tls) if config.tls.certificate else None
        self._watches = _watches(config, known_keys, self._tls)
        self._watching: list[asyncio.Task[None]] = []
        self._app = build_app(models, config, self._traces, surfaces, known_keys)
        self._in_flight = self._app[IN_FLIGHT]
        self._app_runner = web.AppRunner(self._app)
        self._site_runner: web.ServerRunner | None = None
        self.port = config.port

    async def listen(self) -> None:
        """Binds the address; from then on requests are answered. Sets `port`.

        Raises:
            ConfigError: the address is taken or is not this machine's; the key file or those of
                TLS cannot be read.
        """
        for watch in self._watches:
            await watch.start()
        await self._app_runner.setup()
        server = self._app_runner.server
        assert server is not None, "a set-up runner has a server"
        served = serve_app(server, make_room(self._config.max_connections))
        self._site_runner = web.ServerRunner(served, shutdown_timeout=_CLOSE_TIMEOUT_S)
        await self._site_runner.setup()
        host, port = self._config.host, self._config.port
        try:
            await Site(self._site_runner, host, port, self._tls).start()
        except OSError as error:
            await self.close()
            raise ConfigError(
                [
                    f"Cannot listen on {host} port {port}: {_reason(error)}. "
                    "Choose another with --set server.port=… or server.host."
                ]
            ) from None
        self.port = self._site_runner.addresses[0][1]
        self._watching = [asyncio.create_task(watch.run()) for watch in self._watches]

    async def reread(self) -> None:
        """Reads the key file and those of TLS again; what cannot be read is told in the log."""
        for watch in self._watches:
            await watch.reread(even_unchanged=True)

    def take_over(self, config: ServerConfig) -> None:
        """Lets what may change while serving be as `config` says: keys and limits."""
        self._config = config
        self._app[GUARD].take_over(config)
        self._app._client_max_size = config.max_body  # aiohttp asks for it once a request

    @property
    def url(self) -> str:
        """E.g. `http://127.0.0.1:8080`."""
        host = self._config.host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

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
        for task in self._watching:
            task.cancel()
        if self._site_runner is not None:
            await self._site_runner.cleanup()
        await self._app_runner.cleanup()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)


def _watches(config: ServerConfig, known_keys: KnownKeys, tls: Tls | None) -> list[Watch[Any]]:
    """What keeps keys and certificates equal to their files."""
    watches: list[Watch[Any]] = [] if tls is None else [tls.watch]
    if config.key_file is not None:
        file = KeyFile(Path(config.key_file))
        watches.append(
            Watch("server.key_file", [file.path], read=file.read, take=known_keys.replace)
        )
    return watches


def _reason(error: OSError) -> str:
    """asyncio writes the address into `strerror`; a name that can't be found has a code below 0."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
