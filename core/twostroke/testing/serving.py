"""A server over the echo backend, for tests of surfaces: real sockets, no weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig, ServerConfig, SpeculationConfig
from twostroke.model import Model
from twostroke.server.all_surfaces import all_surfaces
from twostroke.server.endpoint import Endpoint
from twostroke.server.models import Models
from twostroke.testing import echo
from twostroke.testing.bundles import make_echo_bundle

_START_TIMEOUT_S = 60.0


class EchoServer:
    """Serves the model `echo`, which answers `→` and its prompt again, while it is entered.

    `plugins` are objects with hooks, beside those that are installed. `folder` takes the bundle
    and must be empty. `port` is free until then.
    """

    def __init__(
        self, folder: Path, plugins: Iterable[Any] = (), config: ServerConfig | None = None
    ) -> None:
        """Raises PluginError where two plugins bring one surface or route."""
        self._plugins = load_plugins(extra=[echo, *plugins])
        self._surfaces = all_surfaces(self._plugins.surfaces)
        self._config = config or ServerConfig(port=0)
        bundle = make_echo_bundle(folder / "echo")
        no_guesses = SpeculationConfig(mode="off")
        self._model_config = ModelConfig(
            name="echo", source=str(bundle), backend="echo", speculation=no_guesses
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._started = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """E.g. `http://127.0.0.1:38211`."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._model = Model.from_config(self._model_config, plugins=self._plugins)
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise TimeoutError("the server did not start; its thread's error is in the log")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._model.close()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        models = Models(["echo"])
        endpoint = Endpoint(models, self._config, self._surfaces)
        await endpoint.listen()
        models.add(self._model)
        self.port = endpoint.port
        self._started.set()
        await self._stop.wait()
        await endpoint.close()
