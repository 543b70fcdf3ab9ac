"""A live server whose models come and go as its configuration says, over the echo backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import Config
from twostroke.errors import TwostrokeError
from twostroke.model import Model
from twostroke.server.reload import ConfigFile, Reload
from twostroke.server.residency import Residency
from twostroke.testing import echo


class Many:
    """What a `LiveServer` serves, and how its models are loaded."""

    def __init__(self, live: Any, config: Config, **more: Any) -> None:
        self.live = live
        self.models = live.registry
        self.loads: list[str] = []  # the names, in the order of their loads
        self.opened: list[Model] = []
        self.fault: TwostrokeError | None = None  # what the next loads end with
        self.may_load = threading.Event()
        self.may_load.set()
        self._plugins = load_plugins(extra=[echo])

        async def make() -> None:
            self.models.serve(config)
            self.residency = Residency(self.models, self.load, config.server.load_wait_s, **more)
            file = ConfigFile(None, self._read)
            endpoint = self.live.endpoint
            self._reload = Reload(config, file, endpoint, self.models, self.residency)

        self.run(make())

    def load(self, settings, report) -> Model:
        """As `Model.from_config`; waits for `may_load`."""
        self.loads.append(settings.model.name)
        assert self.may_load.wait(60)
        if self.fault is not None:
            raise self.fault
        model = Model.from_config(settings.model, settings.scheduler, plugins=self._plugins)
        self.opened.append(model)
        return model

    def reload(self, config: Config | TwostrokeError, *, wait: bool = True) -> None:
        """Has the file say something else, or be wrong; waits until its models have come."""
        self.file = config

        async def reloading() -> None:
            await self._reload.reread()
            if wait:
                await self._reload.settled()

        self.run(reloading())

    def _read(self) -> Config:
        if isinstance(self.file, TwostrokeError):
            raise self.file
        return self.file

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine in the server's loop and answers what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.live._loop).result(60)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the server's loop and answers what it returns."""

        async def calling() -> Any:
            return function(*arguments)

        return self.run(calling())

    def states(self) -> dict[str, str]:
        """The state of each model that is served."""
        return {name: each.state.value for name, each in self.models.served.items()}

    def is_idle(self) -> bool:
        """Whether no request holds a model: a moment after its client has the answer."""
        return self.call(lambda: all(each.is_idle for each in self.models.residents()))

    def health(self) -> dict[str, Any]:
        """What `/health` says."""
        return self.live.get("/health").json()

    def generate(self, model: str | None = None, prompt: str = "hi", **more: Any) -> Any:
        """An answer of /generate."""
        named = {} if model is None else {"model": model}
        return self.live.post("/generate", {"prompt": prompt, **named, **more})

    def stream(self, model: str, prompt: str) -> Any:
        """A stream that has begun."""
        raw = self.live.connect("/generate", {"prompt": prompt, "model": model})
        assert b" 200 " in raw.head()
        assert raw.chunk() == "→".encode()
        return raw


@pytest.fixture
def config_of(echo_bundle: Path) -> Callable[..., Config]:
    """A configuration of echo models: `config_of({"name": "a"}, server={...})`."""

    def make(*models: dict[str, Any], **sections: Any) -> Config:
        common = {"source": str(echo_bundle), "backend": "echo"}
        server = {"port": 0, **sections.pop("server", {})}
        named = [{**common, **model} for model in models]
        return Config.model_validate({"server": server, "models": named, **sections})

    return make


@pytest.fixture
def serve_many(make_server, config_of) -> Iterator[Callable[..., Many]]:
    """Makes live servers of `config_of(...)`; closed after the test. `start=False`: not loaded."""
    with ExitStack() as stack:

        def make(
            *models: dict[str, Any], start: bool = True, demand_of: Any = None, **sections: Any
        ) -> Many:
            config = config_of(*models, **sections)
            more = {} if demand_of is None else {"demand_of": demand_of}
            many = Many(make_server([], config.server), config, **more)
            stack.callback(lambda: many.run(many.residency.close()))
            stack.callback(many.may_load.set)
            if start:
                many.run(many.residency.start())
            return many

        yield make
