"""Endpoints over the echo backend, on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig, SchedulerConfig, ServerConfig
from twostroke.model import Model
from twostroke.server.endpoint import Endpoint
from twostroke.server.models import Models
from twostroke.testing import echo, make_echo_bundle


def _run(endpoint_of: Callable[[], Endpoint], started: Callable[[Any], None]) -> None:
    async def run() -> None:
        endpoint, stop = endpoint_of(), asyncio.Event()
        await endpoint.listen()
        started((endpoint, stop, asyncio.get_running_loop()))
        await stop.wait()
        await endpoint.close()

    asyncio.run(run())


@pytest.fixture(scope="session")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An echo bundle with room for long prompts, a byte a token; shared."""
    folder = tmp_path_factory.mktemp("bundles") / "long"
    return make_echo_bundle(folder, context_tokens=16384, eos_ids=(2,))


@pytest.fixture
def echo_url(long_bundle: Path) -> Iterator[Callable[..., str]]:
    """Serves the bundle in a thread and answers the URL; closed after the test."""
    with ExitStack() as stack:

        def serve(*, keys: tuple[str, ...] = (), max_queue: int = 64, **options: Any) -> str:
            config = ModelConfig(
                name="echo", source=str(long_bundle), backend="echo", options=options
            )
            scheduler = SchedulerConfig(max_queue=max_queue, max_rows=8 if max_queue else 1)
            model = Model.from_config(config, scheduler, plugins=load_plugins(extra=[echo]))
            stack.callback(model.close)
            models = Models(["echo"])
            models.add(model)
            found: list[Any] = []
            is_up = threading.Event()

            def started(what: Any) -> None:
                found.append(what)
                is_up.set()

            thread = threading.Thread(
                target=_run,
                args=(lambda: Endpoint(models, ServerConfig(port=0, keys=keys)), started),
                daemon=True,
            )
            thread.start()
            assert is_up.wait(30)
            endpoint, stop, loop = found[0]
            stack.callback(thread.join, 30)
            stack.callback(loop.call_soon_threadsafe, stop.set)
            return f"http://127.0.0.1:{endpoint.port}"

        yield serve
