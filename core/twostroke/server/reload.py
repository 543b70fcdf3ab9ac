"""Takes up a changed configuration while everything is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from twostroke.config.exposure import open_doors
from twostroke.config.schema import Config, ServerConfig
from twostroke.errors import ConfigError, TwostrokeError
from twostroke.server.endpoint import Endpoint
from twostroke.server.models import Models
from twostroke.server.residency import Residency
from twostroke.server.served import Served
from twostroke.server.watch import PERIOD_S, state_of

logger = logging.getLogger("twostroke.server")

# What of `server` is taken over at once. The rest decides what was made at the start.
LIVE = frozenset(
    {"keys", "max_body", "shutdown_timeout_s", "default_model", "load_wait_s", "watch"}
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Where a configuration comes from: `read` raises ConfigError. `path` None: from no file."""

    path: Path | None
    read: Callable[[], Config]


class Reload:
    """Makes what is served equal to what the file says now.

    The file is checked whole first: one that is wrong changes nothing. Then the names, the default
    and the limits are taken over in one step, models that were taken out leave when their answers
    have ended, those that were added are loaded, and those whose section (or the scheduler) has
    changed are opened anew, one after the other, where more than limits has. Used in one event
    loop.
    """

    def __init__(
        self,
        config: Config,
        file: ConfigFile,
        endpoint: Endpoint,
        models: Models,
        residency: Residency,
    ) -> None:
        """`config` is what runs."""
        self._config = config
        self._file = file
        self._endpoint = endpoint
        self._models = models
        self._residency = residency
        self._asked = asyncio.Event()
        self._bringing: set[asyncio.Task[None]] = set()

    def ask(self) -> None:
        """Has `keep_up` read the file again."""
        self._asked.set()

    async def keep_up(self) -> None:
        """Reads the file again whenever somebody asks, or it has changed; until cancelled."""
        path = self._file.path
        looking = None if path is None else asyncio.ensure_future(self._watch(path))
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                await self._endpoint.reread()
                await self.reread()
        finally:
            if looking is not None:
                looking.cancel()

    async def _watch(self, path: Path) -> None:
        async for _ in changes(path):
            if self._config.server.watch:
                logger.info("%s has changed", path)
                self.ask()

    async def reread(self) -> None:
        """Reads the file and does what it says; the log says what was wrong or done.

        Models come and go after that: see `settled`.
        """
        try:
            config = await asyncio.to_thread(self._file.read)
            self._check(config)
        except ConfigError as error:
            self._models.problems = tuple(error.problems)
            lines = "\n".join(error.problems)
            logger.warning("the changed configuration is wrong, the old one stays:\n%s", lines)
            return
        self._models.problems = ()
        self._take(config)

    async def settled(self) -> None:
        """Returns when the models are what the last file said, as far as they could be loaded."""
        while self._bringing:
            await asyncio.wait(self._bringing)

    def _take(self, config: Config) -> None:
        before = dict(self._models.served)
        self._take_server(config)
        self._models.serve(self._config.model_copy(update={"models": config.models}))
        served = self._models.served
        for name, each in before.items():
            if name not in served:
                logger.info("%s is not served any more", name)
                if each.resident is not None:
                    self._residency.unload(each)
        for name, each in served.items():
            if each.resident is not None and each.settings is not None:
                each.resident.take(each.settings)
            if name not in before:
                each.is_awaited = False
                each.stage = None if each.is_lazy else each.stage
        for name, each in served.items():
            task = asyncio.ensure_future(self._bring(each, is_new=name not in before))
            self._bringing.add(task)
            task.add_done_callback(self._bringing.discard)
        logger.info("the configuration was taken up, serving %s", ", ".join(served))

    def _check(self, config: Config) -> None:
        """Raises ConfigError where what would then be in force leaves a door open."""
        doors = open_doors(self._server_of(config))
        if doors:
            raise ConfigError(doors)

    def _server_of(self, config: Config) -> ServerConfig:
        """The section that would be in force: what may change, beside what runs."""
        taken = {name: getattr(config.server, name) for name in LIVE}
        return self._config.server.model_copy(update=taken)

    def _take_server(self, config: Config) -> None:
        server = self._server_of(config)
        changed = [n for n in ServerConfig.model_fields if n not in LIVE]
        changed = [n for n in changed if getattr(server, n) != getattr(config.server, n)]
        pending = [f"server.{name}" for name in changed]
        if config.plugins != self._config.plugins:
            pending.append("plugins")
        if pending:
            logger.warning("changed, but only a restart takes it up: %s", ", ".join(pending))
        self._models.pending = tuple(pending)
        self._config = self._config.model_copy(
            update={"server": server, "scheduler": config.scheduler}
        )
        self._endpoint.take_over(server)
        self._residency.load_wait_s = server.load_wait_s

    async def _bring(self, served: Served, *, is_new: bool) -> None:
        """Has a model run by its new settings; where that fails, what ran before runs on."""
        served.has_fault = False
        try:
            if served.resident is not None:
                await self._residency.reopen(served)
            elif is_new and not served.is_lazy:
                await self._residency.load(served)
            else:
                served.failure = None  # by other settings it may be loaded
        except TwostrokeError as error:
            served.has_fault = served.resident is not None
            logger.warning("%s could not be loaded as it is configured now: %s", served.name, error)


async def changes(path: Path) -> AsyncIterator[None]:
    """Yields whenever the file has changed and then stood still for a second.

    Looked at is when it was written, how long and which it is, so that a file that was put in its
    place, or behind a link, is noticed.
    """
    known = seen = await asyncio.to_thread(state_of, path)
    while True:
        await asyncio.sleep(PERIOD_S)
        before, seen = seen, await asyncio.to_thread(state_of, path)
        if seen is not None and seen == before and seen != known:
            known = seen
            yield
