"""A live server in a thread, over the echo backend: real sockets, answers in milliseconds.

The echo model answers `→`, the prompt again, and the end; one token is one byte (the separator is
one token too), so the expected answer to any prompt is known.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig, SchedulerConfig, ServerConfig, SpeculationConfig
from twostroke.model import Model
from twostroke.server.all_surfaces import BUILT_IN
from twostroke.server.endpoint import Endpoint
from twostroke.server.models import Models
from twostroke.server.surface import Surface
from twostroke.testing import echo

from .wire import JSON, RawSocket, Reply


class LiveServer:
    """An endpoint on a free port, in a thread of its own."""

    def __init__(
        self,
        models: list[Model],
        names: list[str],
        config: ServerConfig,
        surfaces: Sequence[Surface] = BUILT_IN,
    ) -> None:
        self.models = models
        self._surfaces = surfaces
        self.registry = Models(names)
        self._config = config
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    @property
    def model(self) -> Model:
        return self.models[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.endpoint = Endpoint(self.registry, self._config, self._surfaces)
        await self.endpoint.listen()
        for model in self.models:
            self.registry.add(model)
        self.port = self.endpoint.port
        self._started.set()
        await self._stop.wait()
        await self.endpoint.close()

    def call(self, function: Callable[[], Any]) -> None:
        """Runs a function in the server's loop."""
        self._loop.call_soon_threadsafe(function)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine in the server's loop to its end."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def ask(
        self,
        method: str,
        path: str,
        body: JSON | bytes | str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request over a connection of its own."""
        if isinstance(body, dict):
            body = json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: JSON | bytes | str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, named)

    def get(self, path: str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", path, None, named)

    def connect(
        self,
        path: str,
        body: JSON,
        *,
        version: str = "1.1",
        receive_buffer_bytes: int | None = None,
        **headers: str,
    ) -> RawSocket:
        """Sends a request over a bare socket and leaves the answer to be read."""
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/{version}", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(data)}", "", ""]
        return self.connect_raw("\r\n".join(lines).encode() + data, receive_buffer_bytes)

    def connect_chunked(self, path: str, body: bytes) -> RawSocket:
        """Sends a body in chunks, so that its length is not announced."""
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += ["Transfer-Encoding: chunked", "", ""]
        chunks = [body[i : i + 500] for i in range(0, len(body), 500)]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
        return self.connect_raw("\r\n".join(lines).encode() + framed)

    def connect_raw(self, data: bytes, receive_buffer_bytes: int | None = None) -> RawSocket:
        """Sends bytes over a bare socket."""
        connection = socket.socket()
        connection.settimeout(30)
        if receive_buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(data)
        return RawSocket(connection)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits for another thread to bring something about."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.005)


def open_echo(
    bundle: Path,
    name: str = "echo",
    scheduler: SchedulerConfig | None = None,
    speculation: Literal["on", "off"] = "off",  # a token a run: tests count and delay them
    **options: Any,
) -> Model:
    """A model over the echo backend, which takes `options`."""
    config = ModelConfig(
        name=name,
        source=str(bundle),
        backend="echo",
        options=options,
        speculation=SpeculationConfig(mode=speculation),
    )
    plugins = load_plugins(extra=[echo])
    return Model.from_config(config, scheduler or SchedulerConfig(), plugins=plugins)


@pytest.fixture
def serve_echo(echo_bundle: Path) -> Iterator[Callable[..., LiveServer]]:
    """Makes live servers: `serve_echo(step_delay_s=0.01)`; closed after the test."""
    with ExitStack() as stack:

        def make(
            *,
            name: str = "echo",
            server: JSON | None = None,
            scheduler: JSON | None = None,
            bundle: Path = echo_bundle,
            surfaces: Sequence[Surface] = BUILT_IN,
            **options: Any,
        ) -> LiveServer:
            model = open_echo(bundle, name, SchedulerConfig(**scheduler or {}), **options)
            stack.callback(model.close)
            live = LiveServer([model], [name], ServerConfig(port=0, **server or {}), surfaces)
            stack.callback(live.close)
            return live

        yield make


@pytest.fixture(scope="module")
def live_as(echo_bundle: Path) -> Iterator[Callable[[str], LiveServer]]:
    """Makes servers with one fast model of that name, shared by a module's tests."""
    with ExitStack() as stack:

        def make(name: str) -> LiveServer:
            model = open_echo(echo_bundle, name)
            stack.callback(model.close)
            server = LiveServer([model], [name], ServerConfig(port=0))
            stack.callback(server.close)
            return server

        yield make


@pytest.fixture(scope="module")
def live(live_as: Callable[[str], LiveServer]) -> LiveServer:
    """A server with one fast model, shared by a module's tests."""
    return live_as("echo")


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def make_server() -> Iterator[Callable[..., LiveServer]]:
    """Makes a server whose models are still loading: `make_server(names, config)`."""
    with ExitStack() as stack:

        def make(names: list[str], config: ServerConfig) -> LiveServer:
            live = LiveServer([], names, config)
            stack.callback(live.close)
            return live

        yield make


@pytest.fixture
def echo_model(echo_bundle: Path) -> Iterator[Callable[..., Model]]:
    """Opens models over the echo backend; closed after the test."""
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> Model:
            model = open_echo(echo_bundle, name, **options)
            stack.callback(model.close)
            return model

        yield make
